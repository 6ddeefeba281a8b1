"""The base of import formats: a function that reads a file's records one by one, each as steps or as a problem."""

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
    """One record of a file, read.

    Attributes:
        where: ``name:line`` or ``name[index]``.
        steps: its steps, fields as in ``POST /api/v1/steps``; their uids follow from their content.
        rewards: rewards of whole trajectories that their steps' rewards don't add up to.
    """

    where: str
    steps: Sequence[Mapping[str, Any]]
    rewards: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that could not be read: where, which field, and why."""

    where: str
    field: str | None
    message: str

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"where": self.where, "field": self.field, "message": self.message}


ReadResult = ConvertedRecord | Problem
Read = Callable[[Path], Iterator[ReadResult]]


@dataclass(frozen=True, slots=True)
class Format:
    """One import format.

    Attributes:
        recognises: whether a file looks like it: its path and its first record (None where it has none).
        read: streams the records; memory is bounded by one record and, where calls of several sessions are mixed, by
            a count per session.
        own_uids: uids are the producer's and not made from the content, so a step that is there already may contradict
            and is sent to find out.
    """

    name: str
    title: str
    recognises: Callable[[Path, Any], bool]
    read: Read
    own_uids: bool = False


def convert_record(where: str, record: Any, convert: Callable[[], ConvertedRecord]) -> ReadResult:
    """The converted record, or a Problem that names the place where the record doesn't fit its format.

    Keys that the record holds beside the conversation are scrubbed out of it, also where the format leaves them behind.
    """
    try:
        converted = convert()
        keys = logged_secrets(record)
        return replace(converted, steps=scrubbed(list(converted.steps), keys)) if keys else converted
    except InvalidInput as error:
        return Problem(where, error.field, error.message)
    except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError, RecursionError) as error:
        # Something in it is of another kind, or nested deeper, than what reads it expects, at a place that only the
        # reader knows.
        return Problem(where, None, f"not shaped like a record of this format: {error}")


def fingerprint(value: Any) -> str:
    """32 hex digits that equal content has in common."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except TypeError:  # integers beyond 64 bits, lone surrogates
        text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


class Repeats:
    """Tells equal records of a file apart by how often they came before, so that rollouts alike stay two."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def uid(self, value: Any) -> str:
        """A uid that follows from the content, the same in every reading of the file."""
        digest = fingerprint(value)
        n = self._seen.get(digest, 0)
        self._seen[digest] = n + 1
        return f"import-{digest}" if n == 0 else f"import-{digest}-{n}"


def finished(step: Mapping[str, Any], source_format: str) -> dict[str, Any]:
    """A step without its unknown fields, marked as imported, its uid made from its content where it has none."""
    known = {name: value for name, value in step.items() if value is not None}
    known.setdefault("source", "import")
    known["metadata"] = {**(known.get("metadata") or {}), "imported_from": source_format}
    if "step_uid" not in known:
        known["step_uid"] = f"import-{fingerprint(known)}"
    return known


def conversation(
    messages: Sequence[Mapping[str, Any]], tools: Any, common: Mapping[str, Any], *, reward: float | None = None
) -> list[dict[str, Any]]:
    """Each assistant message as a step whose prompt is everything before it; ``weight: 0`` ones are only context.

    The reward goes to the last step. Raises InvalidInput when there is no assistant message to learn from.
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
    """A list of objects, also from JSON text; None stays None. Raises InvalidInput."""
    value = decoded(value, name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InvalidInput("not a list of objects", field=name)
    return value


def decoded(value: Any, name: str) -> Any:
    """JSON text parsed, anything else as it is. Raises InvalidInput."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error}", field=name) from error


def text(record: Mapping[str, Any], *names: str) -> str | None:
    """The first of these fields that is a non-empty text (or a whole number); None where none is."""
    for name in names:
        value = record.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return None


def number(record: Mapping[str, Any], *names: str) -> float | None:
    """The first of these fields that is there, as a number. Raises InvalidInput when it is none."""
    for name in names:
        value = record.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput("not a number", field=name)
        return float(value)
    return None
