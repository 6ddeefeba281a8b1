"""Reads what models answer: a JSON object, or a program; what can't be read is a reason, not an error."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from core.checked import checked
from core.errors import InvalidInput
from core.rewards.judging import json_object
from core.synthesis.rows import Failed

StructT = TypeVar("StructT", bound=msgspec.Struct)
SHOWN_CHARS = 200
_PYTHON = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)


def object_of(text: str) -> dict[str, Any]:
    """The JSON object of an answer.

    Raises:
        Failed: there is none.
    """
    value = json_object(text)
    if value is None:
        raise Failed(f"malformed: the answer has no JSON object: {_shown(text)}")
    return value


def typed(model: type[StructT], value: Mapping[str, Any]) -> StructT:
    """The object as ``model``.

    Raises:
        Failed: a field is missing or has the wrong type.
    """
    try:
        return checked(model, value)
    except InvalidInput as error:
        raise Failed(f"malformed: {error.message}", dict(value)) from error


def program_of(text: str) -> str:
    """The last Python block of an answer.

    Raises:
        Failed: there is none.
    """
    blocks = [one.strip() for one in _PYTHON.findall(text) if one.strip()]
    if not blocks:
        raise Failed(f"malformed: the answer has no Python block: {_shown(text)}")
    return f"{blocks[-1]}\n"


def _shown(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…")
