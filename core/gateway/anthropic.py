"""Anthropic's own API for agents that speak it: the body goes as it came, so nothing is lost in a translation.

Signed thinking, server tools and cache marks have no place in chat; between an agent and the provider that it was
made for they need none.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

import aiohttp
import orjson

from core.errors import EngineError, EngineTimeout
from core.gateway.engine import EngineAnswer, EngineCall

PROVIDER: Final = "anthropic/"
API_BASE: Final = "https://api.anthropic.com"
API_VERSION: Final = "2023-06-01"
OAUTH_PREFIX: Final = "sk-ant-oat"
"""Begins keys that go as bearer tokens."""

_NOT_SENT: Final = frozenset({"stream"})
_HEADERS: Final = ("anthropic-version", "anthropic-beta")


def speaks_natively(call: EngineCall, model: str) -> bool:
    """True for a Messages call to one of Anthropic's models."""
    return call.native is not None and call.native_dialect == "messages" and model.startswith(PROVIDER)


async def ask_anthropic(
    session: aiohttp.ClientSession,
    call: EngineCall,
    model: str,
    *,
    api_base: str | None,
    api_key: str | None,
    timeout_s: float,
) -> EngineAnswer:
    """Ask for the whole message.

    Args:
        api_key: the engine's; without one the environment's (``ANTHROPIC_API_KEY``), else the agent's own.

    Raises:
        EngineError: no connection, or an answer that is no JSON object. EngineTimeout: no answer in time.
    """
    assert call.native is not None
    body = {name: value for name, value in call.native.items() if name not in _NOT_SENT}
    body["model"] = model.removeprefix(PROVIDER)
    key = api_key or os.environ.get("ANTHROPIC_API_KEY") or call.foreign_key
    headers = {"Content-Type": "application/json", "anthropic-version": API_VERSION}
    headers |= {name: call.headers[name] for name in _HEADERS if name in call.headers}
    if key is not None:
        headers |= {"Authorization": f"Bearer {key}"} if key.startswith(OAUTH_PREFIX) else {"x-api-key": key}
    base = (api_base or os.environ.get("ANTHROPIC_API_BASE") or API_BASE).rstrip("/").removesuffix("/v1")
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.post(
                f"{base}/v1/messages",
                data=orjson.dumps(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None),
                allow_redirects=False,
            ) as response,
        ):
            status, raw, retry_after = response.status, await response.read(), response.headers.get("Retry-After")
    except TimeoutError as error:
        raise EngineTimeout(f"{model} gave no answer within {timeout_s:g} s") from error
    except aiohttp.ClientError as error:
        raise EngineError(f"{model} can't be reached: {error}") from error
    try:
        answer = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise EngineError(f"{model} answered with status {status} and no JSON", upstream_status=status) from error
    if not isinstance(answer, dict) or (status == 200 and not isinstance(answer.get("content"), list)):
        raise EngineError(f"{model} answered with status {status} and no message", upstream_status=status)
    return EngineAnswer(status, raw, answer, model, retry_after=retry_after, engine_dialect="messages")
