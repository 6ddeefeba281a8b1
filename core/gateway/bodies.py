"""Engines' bodies: parsed as far as they can be, and the words in those that are errors."""

from __future__ import annotations

import json
from typing import Any

import orjson

from core.errors import EngineError


def parse_body(raw: bytes) -> tuple[Any, bytes]:
    """The parsed body, and the body as strict JSON. Raises EngineError when it is none."""
    try:
        return orjson.loads(raw), raw
    except orjson.JSONDecodeError:
        pass
    try:
        # Some engines write NaN or Infinity for a log-prob. They become null: marked, not guessed.
        strict = orjson.dumps(json.loads(raw))
    except (ValueError, RecursionError, TypeError) as error:
        raise EngineError(f"the engine's answer is not JSON: {error}") from error
    return orjson.loads(strict), strict


def maybe_json(raw: bytes) -> Any:
    """The parsed body; None where it is no JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def said(body: Any, raw: bytes = b"") -> str:
    """What an error body says, in one line."""
    if isinstance(body, dict):
        inner = body.get("error")
        message = inner.get("message") if isinstance(inner, dict) else body.get("message") or inner
        if message:
            return str(message)[:500]
    return raw[:200].decode("utf-8", "replace") or "nothing"
