"""The names of a condition on pages that list trajectories: there ``reward`` is the trajectory's, not the step's.

A condition is stored and compiled over step columns only, so that it means the same on every page. What a person types
on a list of trajectories is rewritten once, before it is stored: ``reward < 0.5`` becomes ``trajectory_reward < 0.5``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from core.pool.query.where import compile_where, parsed_condition

TRAJECTORY_NAMES: Final = {
    "reward": "trajectory_reward",
    "quality": "trajectory_quality",
    "correct": "trajectory_correct",
    "n_tokens": "trajectory_tokens",
}
"""Step column -> the column that holds the same of its trajectory."""


def ambiguous_names(text: str) -> list[str]:
    """The names in a condition that steps and trajectories both have. InvalidInput as ``compile_where``."""
    return list(dict.fromkeys(name for name, _, _ in _references(text)))


def for_trajectories(text: str) -> str:
    """The condition with these names replaced by the trajectory's. InvalidInput as ``compile_where``.

    >>> for_trajectories("reward < 0.5 AND step_reward > 0 AND agent = 'reward'")
    "trajectory_reward < 0.5 AND step_reward > 0 AND agent = 'reward'"
    """
    raw = text.encode("utf-8")
    for name, begin, n_bytes in sorted(_references(text), key=lambda each: -each[1]):
        raw = raw[:begin] + TRAJECTORY_NAMES[name].encode() + raw[begin + n_bytes :]
    return raw.decode("utf-8")


def _references(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first byte, bytes) of each use of an ambiguous name."""
    if compile_where(text) is None:
        return
    node, offset = parsed_condition(text)
    waiting: list[Any] = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            names = item.get("column_names")
            if item.get("class") == "COLUMN_REF" and names and names[0].lower() in TRAJECTORY_NAMES:
                yield names[0].lower(), item["query_location"] - offset, item["query_location_length"]
            waiting.extend(item.values())
