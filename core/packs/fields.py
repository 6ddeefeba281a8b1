"""Reads typed fields of JSON objects; every error names the field and the fix."""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from core.errors import InvalidInput
from core.packs.model import PackFile
from core.packs.paths import check_path

MISSING: Any = object()


def located(error: InvalidInput, where: str) -> InvalidInput:
    """The same error with the file, line or task that it was found in before its message."""
    return InvalidInput(f"{where}: {error.message}", field=error.field, hint=error.hint)


def parse_json(text: str | bytes, where: str) -> Any:
    """Parse JSON.

    Raises:
        InvalidInput: it is not JSON, or has NaN or an infinite number.
    """
    try:
        return json.loads(text.decode("utf-8-sig") if isinstance(text, bytes) else text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is not JSON: {error}", field=where, hint="correct the JSON") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def as_object(value: Any, name: str) -> dict[str, Any]:
    """The value if it is an object, else InvalidInput; None is an empty object."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} is {_kind(value)}", field=name, hint="it must be an object")
    return dict(value)


def as_list(value: Any, name: str) -> list[Any]:
    """The value if it is a list, else InvalidInput; None is an empty list."""
    if value is None:
        return []
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InvalidInput(f"{name} is {_kind(value)}", field=name, hint="it must be a list")
    return list(value)


def as_text(value: Any, name: str, *, empty: bool = False) -> str:
    """The value if it is a text that is not blank (``empty``: or blank), else InvalidInput."""
    if not isinstance(value, str) or not (empty or value.strip()):
        raise InvalidInput(f"{name} is {_kind(value)}", field=name, hint="it must be a text that is not empty")
    return value


def as_seconds(value: Any, name: str) -> float | None:
    """A time in seconds; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidInput(f"{name} is {_kind(value)}", field=name, hint="it must be a number of seconds above 0")
    return float(value)


def as_texts(value: Any, name: str) -> tuple[str, ...]:
    """A list of texts; one text is a list of one."""
    values = [value] if isinstance(value, str) else as_list(value, name)
    return tuple(as_text(one, name) for one in values)


def split_of(value: Any) -> str | None:
    """``train`` or ``val`` from a format's word for a split; None for any other word."""
    word = str(value).lower() if isinstance(value, str) else ""
    if word in {"val", "valid", "validation", "dev", "test", "eval", "heldout"}:
        return "val"
    return "train" if word in {"train", "training"} else None


def files_of(value: Any, name: str, path_key: str = "file_path") -> dict[str, PackFile]:
    """Files of a list of ``{file_path, content}``; ``encoding: base64`` for bytes, ``executable: true`` for programs.

    Raises:
        InvalidInput: an entry lacks a field, its content can't be decoded, or a path appears twice.
    """
    files: dict[str, PackFile] = {}
    for index, entry in enumerate(as_list(value, name)):
        at = f"{name}[{index}]"
        one = as_object(entry, at)
        path = as_text(one.get(path_key), f"{at}.{path_key}")
        if path in files:
            raise InvalidInput(f"{path!r} appears twice", field=f"{at}.{path_key}", hint="leave one of them out")
        content = as_text(one.get("content"), f"{at}.content", empty=True)
        files[path] = PackFile(decoded(content, one.get("encoding"), at), one.get("executable") is True)
    return files


def decoded(content: str, encoding: Any, at: str) -> bytes:
    """The bytes of a file's text: UTF-8, or base64 where ``encoding`` says so."""
    try:
        if encoding == "base64":
            return base64.b64decode(content, validate=True)
        return content.encode("utf-8")
    except (UnicodeEncodeError, binascii.Error) as error:
        raise InvalidInput(f"the content can't be decoded: {error}", field=f"{at}.content") from error


def entry_of(path: str, one: PackFile) -> dict[str, Any]:
    """``{file_path, content}`` of a file; files that are not UTF-8 have ``encoding: base64``."""
    entry: dict[str, Any] = {"file_path": path}
    try:
        entry["content"] = one.content.decode("utf-8")
    except UnicodeDecodeError:
        entry |= {"content": base64.b64encode(one.content).decode(), "encoding": "base64"}
    return entry | ({"executable": True} if one.executable else {})


def rules_of(value: Any, name: str) -> tuple[dict[str, Any], ...]:
    """Rules for a judge: ``name``, ``file_path``, ``scores``; also ClawGym's older ``name, target_file, rule``.

    Raises:
        InvalidInput: a rule lacks a field, or a level is not a number in [0, 1].
    """
    rules = []
    for index, entry in enumerate(as_list(value, name)):
        at = f"{name}[{index}]"
        rule = as_object(entry, at)
        if "target_file" in rule and "rule" in rule:
            text = as_text(rule.pop("rule"), f"{at}.rule")
            rule = {**rule, "file_path": rule["target_file"], "scores": {"0": f"fails: {text}", "1": f"meets: {text}"}}
            del rule["target_file"]
        as_text(rule.get("name"), f"{at}.name")
        as_text(rule.get("file_path"), f"{at}.file_path")
        for level, text in as_object(rule.get("scores"), f"{at}.scores").items():
            as_text(text, f"{at}.scores[{level}]")
            if not _is_level(level):
                raise InvalidInput(f"{level!r} is no level", field=f"{at}.scores", hint="a number in [0, 1]")
        if not rule.get("scores"):
            raise InvalidInput("a rule has no levels", field=f"{at}.scores", hint="level in [0, 1] -> description")
        rules.append(rule)
    return tuple(rules)


def _is_level(level: Any) -> bool:
    try:
        return 0 <= float(level) <= 1
    except (TypeError, ValueError):
        return False


def plain(value: Any, name: str) -> Any:
    """A value of Parquet, YAML or TOML as JSON: bytes and dates become ``{"$base64"}`` and ``{"$time"}``.

    Raises:
        InvalidInput: a number is not finite, or a key is not a text.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(f"{name} is {value}", field=name, hint="it must be a finite number, or null")
        return value
    if isinstance(value, bytes):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime.date | datetime.time | datetime.datetime):
        return {"$time": value.isoformat()}
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {_key(key, name): plain(one, f"{name}.{key}") for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(one, f"{name}[{index}]") for index, one in enumerate(value)]
    raise InvalidInput(f"{name} is {_kind(value)}", field=name, hint="it must be a JSON value")


def _key(key: Any, name: str) -> str:
    if not isinstance(key, str):
        raise InvalidInput(f"{name} has the key {key!r}", field=name, hint="keys must be texts")
    return key


def mounted(path: str, prefixes: Sequence[str], name: str) -> str:
    """A path without the first of ``prefixes`` that it starts with, checked."""
    for prefix in prefixes:
        if path.startswith(prefix):
            return check_path(path.removeprefix(prefix), name)
    return check_path(path, name)


def _kind(value: Any) -> str:
    if value is MISSING or value is None:
        return "missing"
    if isinstance(value, str):
        return "empty" if not value.strip() else f"the text {value[:40]!r}"
    return f"of type {type(value).__name__}"
