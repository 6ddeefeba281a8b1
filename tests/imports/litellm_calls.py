"""Calls through LiteLLM whose logging callback keeps what it is given: ``litellm_calls.py ENGINE OUT TOOLS``."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import litellm
from litellm.integrations.custom_logger import CustomLogger

KEY = "sk-not-a-key"
PAYLOADS: list[Any] = []


class Keep(CustomLogger):
    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        PAYLOADS.append(kwargs["standard_logging_object"])

    async def async_log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        PAYLOADS.append(kwargs["standard_logging_object"])


async def main(engine: str, tools: str) -> None:
    litellm.callbacks = [Keep()]
    common = {
        "model": "openai/scripted-1",
        "api_base": engine,
        "api_key": KEY,
        "tools": json.loads(tools),
        "temperature": 0.7,
        "logprobs": True,
        "extra_body": {"return_token_ids": True},
        "metadata": {"tags": ["nightly"]},
        "num_retries": 0,
    }
    for session in ("rollout-0", "rollout-1"):
        messages: list[Any] = [{"role": "user", "content": f"What does a.txt say? ({session})"}]
        first = await litellm.acompletion(messages=messages, litellm_session_id=session, **common)
        message = first.choices[0].message.model_dump(exclude_none=True)
        called = message["tool_calls"][0]["id"]
        messages = [*messages, message, {"role": "tool", "tool_call_id": called, "content": "hello"}]
        await litellm.acompletion(messages=messages, litellm_session_id=session, **common)
    try:
        broken = [{"role": "user", "content": "break"}]
        await litellm.acompletion(messages=broken, litellm_session_id="rollout-2", **common)
    except litellm.BadRequestError as error:
        print(f"refused, as it should be: {error}", file=sys.stderr)
    await asyncio.sleep(2)


def write(out: str) -> None:
    text = "".join(json.dumps(payload, default=str) + "\n" for payload in PAYLOADS)
    Path(out).write_text(text.replace(KEY, "[secret]").replace(sys.prefix, "/venv"))


asyncio.run(main(sys.argv[1], sys.argv[3]))
write(sys.argv[2])
