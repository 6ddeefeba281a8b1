"""Reads TOML as JSON values, and writes JSON values as TOML. Dates are ``{"$time": text}``."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from core.errors import InvalidInput
from core.packs.fields import plain

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def read_toml(content: bytes, where: str) -> dict[str, Any]:
    """Parse a TOML document.

    Raises:
        InvalidInput: it is not TOML, or has a number that is not finite.
    """
    try:
        document = tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is not TOML: {error}", field=where, hint="correct the TOML") from error
    values: dict[str, Any] = plain(document, where)
    return values


def toml_text(document: Mapping[str, Any]) -> str:
    """A TOML document of JSON values; objects become tables, and those in lists become inline tables.

    Raises:
        TypeError: a value is null, which TOML can't express.
    """
    return "".join(_table(document, ()))


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    tables = {key: one for key, one in table.items() if isinstance(one, Mapping) and "$time" not in one}
    lines = [f"{_key(key)} = {_value(one)}\n" for key, one in table.items() if key not in tables]
    if path and (lines or not tables):
        lines.insert(0, f"\n[{'.'.join(map(_key, path))}]\n")
    for key, one in tables.items():
        lines += _table(one, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        if set(value) == {"$time"}:
            return _time(value["$time"])
        return "{" + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _time(text: Any) -> str:
    kinds: tuple[Callable[[str], datetime.date | datetime.time], ...] = (
        datetime.date.fromisoformat,
        datetime.time.fromisoformat,
        datetime.datetime.fromisoformat,
    )
    for read in kinds:
        try:
            return read(text).isoformat()
        except (ValueError, TypeError):
            continue
    raise TypeError(f"{text!r} is no time")
