"""Validates JSON objects with msgspec structs; an error names the field and the expected value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from core.errors import InvalidInput

StructT = TypeVar("StructT", bound=msgspec.Struct)
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def checked(model: type[StructT], value: Mapping[str, Any]) -> StructT:
    """Convert an object to ``model``. A null field counts as absent; fields that the model lacks are ignored.

    Raises:
        InvalidInput: a field is invalid; ``field`` is its path, as in ``identity.agent``, without list indices.
    """
    try:
        return msgspec.convert({name: one for name, one in value.items() if one is not None}, model, str_keys=True)
    except msgspec.ValidationError as error:
        expected, _, path = str(error).partition(" - at ")
        names = re.findall(r"\.(\w+)", path)
        if missing := _MISSING.match(expected):
            names, expected = [*names, missing[1]], "it is missing"
        field = ".".join(names) or None
        message = expected[0].lower() + expected[1:].replace("`", "")
        raise InvalidInput(f"{field or 'the body'}: {message}", field=field) from error
