"""JSON parsing that fails where the value would differ from the text; used for arguments of tool calls."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

MAX_DEPTH = 180
"""Maximum nesting of a value. The body that contains it adds a few; 200 are allowed in all."""
_LONG_NUMBER = re.compile(r"\d{19}")


def exact_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: invalid JSON, nested too deep, or an integer beyond 64 bits, which most readers would change.
    """
    value = orjson.loads(text)
    if text.count("{") + text.count("[") > MAX_DEPTH:
        nested = value
        for _ in range(254 - MAX_DEPTH):
            nested = [nested]
        try:
            orjson.dumps(nested)
        except TypeError as error:
            raise ValueError(f"nested more than {MAX_DEPTH} deep") from error
    if _LONG_NUMBER.search(text):
        json.loads(text, parse_int=_within_64_bits)
    return value


def _within_64_bits(digits: str) -> int:
    number = int(digits)
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"{digits[:30]} is beyond 64 bits")
    return number
