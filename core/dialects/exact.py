"""JSON texts as values, where the value says all that the text says: what a call's arguments are when they are read."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

MAX_DEPTH = 180
"""Lists and objects inside each other that a value may be: a body that holds it nests a few more, and 200 at most."""
_LONG_NUMBER = re.compile(r"\d{19}")


def exact_json(text: str) -> Any:
    """The value that a JSON text spells.

    Raises:
        ValueError: it is no JSON, it is nested deeper than JSON is written, or a whole number in it is beyond 64 bits:
            most readers take that for another one.
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
