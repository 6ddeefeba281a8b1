"""Escapes control and bidirectional characters in text for terminals and logs."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""C0 and C1 controls, line and paragraph separators, bidirectional marks, lone surrogates."""
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text as one line, with such characters escaped as ``\\n``, ``\\x1b`` or ``\\u202e``."""
    return _CONTROL.sub(_spelt, text)


def as_json(text: str) -> str:
    """JSON text with such characters escaped as ``\\u001b``."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_json(value: Any) -> None:
    """Print one line of JSON with control characters escaped."""
    print(as_json(json.dumps(value)))


def _spelt(match: re.Match[str]) -> str:
    char = match[0]
    if char in _SHORT:
        return _SHORT[char]
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"
