"""The base of import formats: types, conversion of records to steps or problems, and shared helpers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from core.errors import InvalidInput
from core.scrub import logged_secrets, scrubbed


@dataclass(frozen=True, slots=True)
class ConvertedRecord:
    """One converted record of a file.

    Attributes:
        where: its position, ``name:line`` or ``name[index]``.
        steps: its steps, with fields as in ``POST /api/v1/steps``; uids are derived from the content.
        rewards: trajectory uid -> reward, if it is not the sum of the steps' rewards.
    """

    where: str
    steps: Sequence[Mapping[str, Any]]
    rewards: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that could not be converted: its position, the field, and the reason."""

    where: str
    field: str | None
    message: str

    def as_dict(self) -> dict[str, Any]:
        """The problem as JSON."""
        return {"where": self.where, "field": self.field, "message": self.message}


ReadResult = ConvertedRecord | Problem
Read = Callable[[Path], Iterator[ReadResult]]


@dataclass(frozen=True, slots=True)
class Format:
    """One import format.

    Attributes:
        recognises: whether a file has this format, by its path and first record (None if it has no records).
        read: streams the records. Memory is bounded by one record and, if sessions are interleaved, by one count per
            session.
        own_uids: uids come from the producer and not from the content. Known steps are then sent as well, so that the
            service can detect conflicts.
    """

    name: str
    title: str
    recognises: Callable[[Path, Any], bool]
    read: Read
    own_uids: bool = False


def convert_record(where: str, record: Any, convert: Callable[[], ConvertedRecord]) -> ReadResult:
    """The converted record, or a Problem if it does not match the format.

    Keys in the record's other fields are removed from the converted steps as well.
    """
    try:
        converted = convert()
        keys = logged_secrets(record)
        return replace(converted, steps=scrubbed(list(converted.steps), keys)) if keys else converted
    except InvalidInput as error:
        return Problem(where, error.field, error.message)
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError, RecursionError) as error:
        # A value has another type or is nested deeper than the converter expects.
        return Problem(where, None, f"not a record of this format: {error}")


def fingerprint(value: Any) -> str:
    """A hash of the content, 32 hex digits."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


class Repeats:
    """Numbers equal records of a file, so that identical rollouts get different uids."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def uid(self, value: Any) -> str:
        """A uid derived from the content and from the number of equal records before it in the file."""
        digest = fingerprint(value)
        n = self._seen.get(digest, 0)
        self._seen[digest] = n + 1
        return f"import-{digest}" if n == 0 else f"import-{digest}-{n}"


def finished(step: Mapping[str, Any], source_format: str) -> dict[str, Any]:
    """Complete a step: remove fields that are None, mark it as imported, and derive a missing uid from the content."""
    known = {name: value for name, value in step.items() if value is not None}
    known.setdefault("source", "import")
    known["metadata"] = {**(known.get("metadata") or {}), "imported_from": source_format}
    if "step_uid" not in known:
        known["step_uid"] = f"import-{fingerprint(known)}"
    return known


def conversation(
    messages: Sequence[Mapping[str, Any]], tools: Any, common: Mapping[str, Any], *, reward: float | None = None
) -> list[dict[str, Any]]:
    """Convert a conversation: each assistant message becomes a step whose prompt is all messages before it.

    Messages with ``weight: 0`` are context only. The reward is set on the last step.

    Raises:
        InvalidInput: there is no assistant message with a weight other than 0.
    """
    for place, message in enumerate(messages):
        if message.get("weight") not in (None, 0, 1):
            raise InvalidInput("a weight is 0 or 1", field=f"messages[{place}].weight")
    plain = [{name: value for name, value in message.items() if name != "weight"} for message in messages]
    spoken = [
        place
        for place, message in enumerate(messages)
        if message.get("role") == "assistant" and message.get("weight") != 0
    ]
    if not spoken:
        raise InvalidInput("no assistant message", field="messages")
    return [
        {
            **common,
            "step_index": index,
            "messages": plain[:place],
            "response_message": plain[place],
            "tools": tools,
            "finish_reason": "tool_calls" if plain[place].get("tool_calls") else "stop",
            "is_last": index == len(spoken) - 1,
            "reward": reward if index == len(spoken) - 1 else None,
        }
        for index, place in enumerate(spoken)
    ]


def objects(value: Any, name: str) -> list[dict[str, Any]] | None:
    """A list of objects, parsed if it is JSON text; None stays None. Raises InvalidInput."""
    value = decoded(value, name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidInput("not a list of objects", field=name)
    return value


def decoded(value: Any, name: str) -> Any:
    """Parse a string as JSON; other values are returned unchanged. Raises InvalidInput."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}", field=name) from error


def text(record: Mapping[str, Any], *names: str) -> str | None:
    """The first of these fields that is a non-empty text (or an integer); None if there is none."""
    for name in names:
        value = record.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return None


def number(record: Mapping[str, Any], *names: str) -> float | None:
    """The first of these fields that is not None, as a number. Raises InvalidInput if it is not a number."""
    for name in names:
        value = record.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput("not a number", field=name)
        return float(value)
    return None
