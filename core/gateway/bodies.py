"""Engines' bodies: parsed as far as they can be, and the words in those that are errors."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, Final

import orjson

from core.errors import EngineError

_PROMPT_IDS_ASKED: Final = frozenset({"return_token_ids", "return_prompt_token_ids"})
# Inside a JSON text the quotes would be escaped: these bytes are always a key and the beginning of its value.
_PROMPT_IDS: Final = re.compile(rb'"prompt_token_ids": ?\[')


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


def parse_answer(raw: bytes, added: Collection[str]) -> tuple[Any, bytes]:
    """``parse_body`` of an engine's answer, where prompt ids that only the gateway asked for are told to be there.

    They are many, nobody reads them here, and the agent does not get them: in place of each such list stands ``[0]``.
    The body that is recorded keeps them.
    """
    if added and not _PROMPT_IDS_ASKED.isdisjoint(added):
        short = _without_prompt_ids(raw)
        if short is not raw:
            try:
                return orjson.loads(short), raw
            except orjson.JSONDecodeError:
                pass
    return parse_body(raw)


def _without_prompt_ids(raw: bytes) -> bytes:
    pieces: list[bytes] = []
    done = 0
    for found in _PROMPT_IDS.finditer(raw):
        end = raw.find(b"]", found.end())
        if end > 0 and _are_numbers(raw[found.end() : end]):
            pieces += (raw[done : found.end()], b"0")
            done = end
    return b"".join([*pieces, raw[done:]]) if pieces else raw


def _are_numbers(text: bytes) -> bool:
    """Whether what stands between brackets is JSON's integers >= 0 and nothing else. May say no where it is."""
    between = b"," + text.replace(b", ", b",") + b","
    return (
        not between.translate(None, b"0123456789,")
        and b",," not in between
        # 01 is no number.
        and between.count(b",0") == between.count(b",0,")
    )


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
