"""JSON objects checked against msgspec structs: an error names the field, and what it should hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from core.errors import InvalidInput

StructT = TypeVar("StructT", bound=msgspec.Struct)
_WITHIN = re.compile(r"\$\.(\w+)")
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def checked(model: type[StructT], value: Mapping[str, Any]) -> StructT:
    """An object as ``model`` has it. A null field counts as absent, and fields that the model lacks are left out.

    Raises:
        InvalidInput: a field that does not fit; ``field`` names it, without what stands inside of it.
    """
    try:
        return msgspec.convert({name: one for name, one in value.items() if one is not None}, model, str_keys=True)
    except msgspec.ValidationError as error:
        expected, _, path = str(error).partition(" - at ")
        within, absent = _WITHIN.search(path), _MISSING.match(expected)
        field = within[1] if within else absent[1] if absent else None
        said = "it is missing" if absent and not within else expected[0].lower() + expected[1:]
        raise InvalidInput(f"{field or 'the body'}: {said.replace('`', '')}", field=field) from error
