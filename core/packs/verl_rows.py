"""Data set rows of verl and Agent-R1: ``data_source, prompt, ability, reward_model, extra_info``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import InvalidInput
from core.packs.fields import as_list, as_object, as_text, split_of
from core.packs.model import ANSWER, PackTask

NAME = "verl"
TITLE = "verl and Agent-R1 rows: data_source, prompt, ability, reward_model, extra_info"


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether a row has this form."""
    return {"prompt", "reward_model"} <= row.keys()


def parse(row: Mapping[str, Any], number: int) -> PackTask:
    """The task of a row; ``number`` is its place in the file, from 0.

    The query is the last user message. The messages are kept in ``extra`` if there are others.

    Raises:
        InvalidInput: there is no user message or no ground truth, or a field has the wrong type.
    """
    rest = dict(row)
    messages = rest.pop("prompt")
    query = query_of(messages)
    model = as_object(rest.pop("reward_model"), "reward_model")
    info = as_object(rest.get("extra_info"), "extra_info")
    answer = model.pop("ground_truth", None)
    style = model.get("style")
    if answer is None and style not in {"model", "none"}:
        raise InvalidInput("there is no expected answer", field="reward_model.ground_truth", hint="the expected answer")
    ability = rest.pop("ability", None)
    if not (isinstance(messages, str) or len(messages) == 1):
        rest["prompt"] = messages
    if model:
        rest["reward_model"] = model
    return PackTask(
        _id(rest, info, number),
        query,
        checker=None if answer is None else ANSWER,
        answer=answer,
        category=as_text(ability, "ability") if ability else None,
        split=split_of(info.get("split")),
        extra=rest,
    )


def _id(row: Mapping[str, Any], info: Mapping[str, Any], number: int) -> str:
    """``source-split-index`` of the row's own index, else its number; both with leading zeros, to sort in order."""
    index = info.get("index")
    source = str(row.get("data_source") or "row").strip().rpartition("/")[2]
    place = f"{index:06d}" if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else f"{number:06d}"
    return "-".join(part for part in (source, str(info.get("split") or ""), place) if part)


def query_of(messages: Any, name: str = "prompt") -> str:
    """The text of the last user message of a list of chat messages, or the prompt itself if it is a text."""
    if isinstance(messages, str):
        return as_text(messages, name)
    turns = [as_object(one, f"{name}[{index}]") for index, one in enumerate(as_list(messages, name))]
    asked = [one for one in turns if one.get("role") == "user"]
    if not asked:
        raise InvalidInput("there is no user message", field=name, hint='a list with {"role": "user", "content": ...}')
    content = asked[-1].get("content")
    if isinstance(content, list):
        content = "\n".join(
            one["text"] for one in content if isinstance(one, Mapping) and isinstance(one.get("text"), str)
        )
    return as_text(content, f"{name}.content")
