"""Earlier responses, found by id in the journal, so they survive restarts and all gateway processes can read
them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from core import records
from core.dialects import RESPONSES, BadRequest, Json, ResponseIds
from core.dialects.responses_items import RESPONSE_PREFIX, parse_response_id
from core.dialects.responses_request import input_items
from core.durable import sync_folder
from core.gateway.access.keys import KeyStore, is_studio_key
from core.journal import read_since_mark

MAX_READ_BYTES: Final = 1 << 30
"""Most journal bytes read per lookup. The record follows the position in the id closely: only what was recorded while
its engine worked lies between.
"""

DELETED_FOLDER: Final = "deleted_responses"
"""A folder beside the journal's segments."""

_ITEM = re.compile(r"^[a-z]+_(?P<tail>.+)_\d+$")


class PreviousResponseNotFound(BadRequest):
    """The previous response that a request names is unknown."""

    type = "previous_response_not_found"


def readable_trajectory(presented: Iterable[str], keys: KeyStore, api_key: str | None) -> str | None:
    """The only trajectory whose responses a caller may read; None means any.

    Where a key is required, a session key reads only the responses of its trajectory.
    """
    if api_key is None or any(is_studio_key(key, api_key) for key in presented):
        return None
    return next((binding.trajectory_uid for key in presented if (binding := keys.resolve(key)) is not None), None)


async def expand_input(directory: Path, dialect: str, request: Mapping[str, Any], within: str | None) -> list[Json]:
    """The full input items of a ``responses`` request that refers to earlier ones; empty if it does not.

    Args:
        within: the only trajectory whose responses may be read; None means any.

    Raises:
        PreviousResponseNotFound: the journal has no such response, or it was made with ``store: false``.
        BadRequest: an invalid input, or an item that was not found.
    """
    if dialect != RESPONSES.name:
        return []
    previous = request.get("previous_response_id")
    items = input_items(request)
    if not previous and not any(_reference(item) or _bare_reasoning(item) for item in items):
        return []
    return await asyncio.to_thread(_expand_input, directory, previous, items, within)


def find_response(directory: Path, response_id: Any, within: str | None = None) -> Json | None:
    """The call record of a response id; None if there is none that was answered and may be read."""
    parts = parse_response_id(response_id) if isinstance(response_id, str) else None
    if parts is None or _deleted(directory, response_id).exists():
        return None
    step_uid, mark = parts
    needle = step_uid.encode()
    n_bytes = 0
    for entry in read_since_mark(directory, mark, step_uid):
        if needle in entry.payload:
            record = records.parse(entry.payload)
            if record["kind"] == "call" and record["step_uid"] == step_uid:
                answered = record.get("http_status") == 200 and record.get("error") is None
                kept = record["request"].get("store") is not False
                allowed = within is None or record["identity"]["trajectory_uid"] == within
                return record if answered and kept and allowed else None
        n_bytes += len(entry.payload)
        if n_bytes > MAX_READ_BYTES:
            return None
    return None


def forget_response(directory: Path, response_id: str) -> None:
    """Hide a response from all later requests in all processes; its record stays."""
    mark = _deleted(directory, response_id)
    mark.parent.mkdir(exist_ok=True)
    with mark.open("wb") as file:
        os.fsync(file.fileno())
    sync_folder(mark.parent)


def _deleted(directory: Path, response_id: str) -> Path:
    """The empty file that marks a response as deleted."""
    return directory / DELETED_FOLDER / hashlib.sha256(response_id.encode()).hexdigest()


def response_of(record: Mapping[str, Any]) -> Json:
    """The response object that the agent got for a record."""
    parts = parse_response_id(str(record["response_id"]))
    assert parts is not None
    ids = ResponseIds(parts[0], record["started_at"], parts[1])
    translation = RESPONSES.open(record["request"], ids, record.get("input_items") or ())
    return translation.full_answer(record["response"])


def _expand_input(directory: Path, previous: Any, items: list[Json], within: str | None) -> list[Json]:
    earlier: list[Json] = []
    if previous:
        record = find_response(directory, previous, within)
        if record is None:
            raise PreviousResponseNotFound(
                f"Previous response with id {previous!r} not found.",
                field="previous_response_id",
                hint="send the whole input; answers to requests with store=false are not kept for this",
            )
        earlier = [*(record.get("input_items") or input_items(record["request"])), *response_of(record)["output"]]
    named = (_reference(item) or _bare_reasoning(item) for item in items)
    return [
        *earlier,
        *(_resolved(directory, item, within) if by_id else item for item, by_id in zip(items, named, strict=True)),
    ]


def _reference(item: Json) -> bool:
    return item.get("type") == "item_reference" or ("type" not in item and "role" not in item)


def _bare_reasoning(item: Json) -> bool:
    """Whether a reasoning item has an id and no content: agents omit reasoning that they were not shown."""
    content_fields = ("content", "summary", "encrypted_content")
    return (
        item.get("type") == "reasoning" and isinstance(item.get("id"), str) and not any(map(item.get, content_fields))
    )


def _resolved(directory: Path, item: Json, within: str | None) -> Json:
    match = _ITEM.match(str(item.get("id")))
    record = find_response(directory, RESPONSE_PREFIX + match["tail"], within) if match is not None else None
    output = response_of(record)["output"] if record is not None else ()
    resolved: Json | None = next((candidate for candidate in output if candidate["id"] == item["id"]), None)
    if resolved is None and _bare_reasoning(item):
        # The item comes from another service; the translation lists it as dropped.
        return item
    if resolved is None:
        raise BadRequest(f"no item {item.get('id')!r} was found", field="input", hint="send the item itself")
    return resolved
