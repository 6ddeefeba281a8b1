"""Plain rows: a prompt, and an expected answer if there is one, under their usual names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import InvalidInput
from core.packs.fields import as_text, as_texts, split_of
from core.packs.model import ANSWER, PackTask
from core.packs.verl_rows import query_of

NAME = "prompts"
TITLE = "JSONL of prompts with expected answers"
PROMPTS = ("prompt", "question", "query", "problem", "instruction", "messages")
ANSWERS = ("answer", "expected_answer", "expected", "ground_truth", "target", "label", "solution")
IDS = ("task_id", "id", "uid", "index")


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether a row has a prompt."""
    return _first(row, PROMPTS) is not None


def parse(row: Mapping[str, Any], number: int) -> PackTask:
    """The task of a row; ``number`` is its place in the file, from 0, and its id if it has none.

    Raises:
        InvalidInput: there is no prompt, or a field has the wrong type.
    """
    rest = dict(row)
    name = _first(rest, PROMPTS)
    if name is None:
        raise InvalidInput("there is no prompt", field="prompt", hint=f"one of {', '.join(PROMPTS)}")
    prompt = rest.pop(name)
    query = query_of(prompt, name)
    if not isinstance(prompt, str) and len(prompt) > 1:
        rest[name] = prompt
    expected = _first(rest, ANSWERS)
    answer = rest.pop(expected) if expected else None
    identity = _first(rest, IDS)
    category = rest.pop("category", None)
    split = split_of(rest.get("split"))
    if split is not None and split == rest["split"]:
        del rest["split"]
    return PackTask(
        _id(rest.pop(identity) if identity else number),
        query,
        checker=None if answer is None else ANSWER,
        answer=answer,
        category=as_text(category, "category") if category else None,
        tags=as_texts(rest.pop("tags", None), "tags"),
        split=split,
        extra=rest,
    )


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if row.get(name) is not None), None)


def _id(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return f"row-{value:06d}"
    return as_text(value, "id")
