"""Text of token ids, by the engine that made them: ``POST /detokenize`` beside ``/v1``."""

from __future__ import annotations

from collections.abc import Sequence

import aiohttp
import orjson

from core.gateway.engine import Engine

TIMEOUT_S = 30.0
TEXT_FIELDS = ("prompt", "text", "content")
"""What vLLM and the engines that ship here, SGLang, and llama.cpp call it."""


async def detokenize(engine: Engine, ids: Sequence[int], model: str | None) -> str | None:
    """The text, special tokens included; None where the engine can't be asked."""
    if engine.address is None:
        return None
    headers = {"Authorization": f"Bearer {engine.api_key}"} if engine.api_key else {}
    body = {"tokens": list(ids), **({"model": model} if model is not None else {})}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session,
            session.post(
                f"{engine.address.removesuffix('/v1')}/detokenize", json=body, headers=headers, allow_redirects=False
            ) as response,
        ):
            told = orjson.loads(await response.read()) if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, orjson.JSONDecodeError):
        return None
    if not isinstance(told, dict):
        return None
    return next((told[name] for name in TEXT_FIELDS if isinstance(told.get(name), str)), None)
