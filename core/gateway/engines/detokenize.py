"""Text of token ids, from the engine that made them: ``POST /detokenize`` beside ``/v1``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import orjson

from core.errors import EngineError, NotFound
from core.gateway.engines.base import Engine

TIMEOUT_S = 30.0
TEXT_FIELDS = ("prompt", "text", "content")
"""The text's field at vLLM and the shipped engines, SGLang, and llama.cpp."""


async def detokenize(engine: Engine, ids: Sequence[int], model: str | None) -> str | None:
    """The text, special tokens included; None if the engine can't detokenize."""
    if engine.address is None:
        return None
    body = {"tokens": list(ids), **({"model": model} if model is not None else {})}
    try:
        async with asyncio.timeout(TIMEOUT_S):
            status, _, raw = await engine.pass_on("/detokenize", body, model, None)
        answer = orjson.loads(raw) if status == 200 else None
    except (EngineError, NotFound, TimeoutError, orjson.JSONDecodeError):
        return None
    if not isinstance(answer, dict):
        return None
    return next((answer[name] for name in TEXT_FIELDS if isinstance(answer.get(name), str)), None)
