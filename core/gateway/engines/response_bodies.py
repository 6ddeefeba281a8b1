"""Parses response bodies of engines, and extracts error messages."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import orjson

from core.errors import EngineError

# Quotes inside a string are escaped, so these bytes are always a key and the start of its value.
_PROMPT_IDS = re.compile(rb'"prompt_token_ids"\s*:\s*\[')
_MIN_CHARS = 8000
"""Shorter lists are parsed faster than they are cut."""


def parse_body(raw: bytes, *, prompt_ids: bool = True) -> tuple[Any, bytes]:
    """The parsed body, and the body as strict JSON.

    Args:
        raw: the body as received.
        prompt_ids: False if the prompt's ids are not needed; they are most of the body and of the parse time. Of a long
            list only the first id is parsed then.

    Raises:
        EngineError: it is not JSON.
    """
    for text in (raw,) if prompt_ids else (_without_prompt_ids(raw), raw):
        try:
            return orjson.loads(text), raw
        except orjson.JSONDecodeError:
            pass
    try:
        # Some engines write NaN or Infinity for a log-prob; they become null, which marks them as unknown.
        strict = orjson.dumps(json.loads(raw))
    except (ValueError, RecursionError, TypeError) as error:
        raise EngineError(f"the engine's answer is not JSON: {error}") from error
    return orjson.loads(strict), strict


def _without_prompt_ids(raw: bytes) -> bytes:
    """The body with long lists of prompt ids cut after the first id, where the rest is certainly a list of numbers."""
    pieces: list[bytes] = []
    at = 0
    while (match := _PROMPT_IDS.search(raw, at)) is not None:
        end = raw.find(b"]", match.end())
        first = raw.find(b",", match.end(), end)
        long = first >= 0 and end - first >= _MIN_CHARS
        if not long or not raw[match.end() : first].strip() or not _are_numbers(raw[first:end]):
            pieces.append(raw[at : match.end()])
            at = match.end()
            continue
        pieces.append(raw[at:first])
        at = end
    return b"".join([*pieces, raw[at:]]) if pieces else raw


def _are_numbers(text: bytes) -> bool:
    """Whether a text is ``,1,2`` or ``, 1, 2``. Other spellings are left to the parser."""
    chars = np.frombuffer(text, np.uint8)
    # A digit minus "0" is below 10; smaller characters wrap around to large values.
    digit = chars - ord("0") < 10
    comma = chars == ord(",")
    apart = ~digit
    ends = comma
    if text[1:2] == b" ":
        ends = chars == ord(" ")
        if ends[0] or not np.array_equal(comma[:-1], ends[1:]):
            return False
        comma = comma | ends
    leading_zero = apart[:-2] & (chars[1:-1] == ord("0")) & digit[2:]
    return bool(
        digit[-1] and np.array_equal(apart, comma) and not (ends[:-1] & apart[1:]).any() and not leading_zero.any()
    )


def maybe_json(raw: bytes) -> Any:
    """The parsed body; None if it is not JSON."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def error_message(body: Any, raw: bytes = b"") -> str:
    """The message of an error body, in one line."""
    if isinstance(body, dict):
        inner = body.get("error")
        message = inner.get("message") if isinstance(inner, dict) else body.get("message") or inner
        if message:
            return str(message)[:500]
    return raw[:200].decode("utf-8", "replace") or "nothing"
