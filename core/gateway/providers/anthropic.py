"""Calls Anthropic's own API for agents that speak Messages: the body is passed on without translation.

Signed thinking, server tools and cache marks can't be expressed in chat, so a translation would lose them.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

import orjson

from core.errors import EngineError, EngineTimeout
from core.gateway.engines.answer import EngineAnswer, EngineCall, EngineStream, Finish
from core.gateway.engines.streams import HttpStream, StreamDeadline
from core.gateway.transport.connection import HttpError
from core.gateway.transport.connection_pool import ConnectionPool, Timeouts

PROVIDER: Final = "anthropic/"
API_BASE: Final = "https://api.anthropic.com"
API_VERSION: Final = "2023-06-01"
OAUTH_PREFIX: Final = "sk-ant-oat"
"""Prefix of keys that are sent as bearer tokens."""

EVENT_STREAM: Final = "text/event-stream"

_NOT_SENT: Final = frozenset({"stream"})
_HEADERS: Final = ("anthropic-version", "anthropic-beta")


def speaks_natively(call: EngineCall, model: str) -> bool:
    """Whether this is a Messages call to one of Anthropic's models."""
    return call.native is not None and call.native_dialect == "messages" and model.startswith(PROVIDER)


async def ask_anthropic(
    pool: ConnectionPool,
    call: EngineCall,
    model: str,
    *,
    name: str,
    api_base: str | None,
    api_key: str | None,
    timeouts: Timeouts,
    finish: Finish | None = None,
) -> EngineAnswer | EngineStream:
    """Call the Messages API.

    Args:
        name: the engine's.
        api_key: the engine's; without one the environment's (``ANTHROPIC_API_KEY``), else the agent's own.
        finish: called at the end of the ``EngineStream``; None requests a whole message.

    Raises:
        EngineError: no connection, or a response that is not a JSON object. EngineTimeout: no response in time.
    """
    assert call.native is not None
    body = {name: value for name, value in call.native.items() if name not in _NOT_SENT}
    body["model"] = model.removeprefix(PROVIDER)
    if finish is not None:
        body["stream"] = True
    key = api_key or os.environ.get("ANTHROPIC_API_KEY") or call.foreign_key
    headers = {"Content-Type": "application/json", "anthropic-version": API_VERSION}
    headers |= {name: call.headers[name] for name in _HEADERS if name in call.headers}
    if key is not None:
        headers |= {"Authorization": f"Bearer {key}"} if key.startswith(OAUTH_PREFIX) else {"x-api-key": key}
    base = (api_base or os.environ.get("ANTHROPIC_API_BASE") or API_BASE).rstrip("/").removesuffix("/v1")
    client = await pool.client()
    deadline = asyncio.get_running_loop().time() + timeouts.total
    try:
        async with asyncio.timeout_at(deadline):
            response = await client.request(
                "POST",
                f"{base}/v1/messages",
                headers=headers,
                body=orjson.dumps(body),
                connect_timeout_s=timeouts.connect,
            )
            if finish is not None and response.status == 200 and response.content_type == EVENT_STREAM:
                return HttpStream(
                    response,
                    name=name,
                    added=(),
                    stream_deadline=StreamDeadline(name, deadline, timeouts),
                    finish=finish,
                    engine_dialect="messages",
                )
            async with response:
                status, raw, retry_after = response.status, await response.read(), response.headers.get("retry-after")
    except TimeoutError as error:
        raise EngineTimeout(f"{model} gave no answer within {timeouts.total:g} s") from error
    except HttpError as error:
        raise EngineError(f"{model} can't be reached: {error}") from error
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"{model} answered with status {status} and no JSON", upstream_status=status) from error
    if not isinstance(answer, dict) or (status == 200 and not isinstance(answer.get("content"), list)):
        raise EngineError(f"{model} answered with status {status} and no message", upstream_status=status)
    return EngineAnswer(status, raw, answer, model, retry_after=retry_after, engine_dialect="messages")
