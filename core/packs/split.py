"""Divides a pack into training and validation tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from core.errors import InvalidInput
from core.packs.model import Pack


def with_split(pack: Pack, val_fraction: float, *, seed: int = 0, together: Iterable[tuple[str, str]] = ()) -> Pack:
    """A pack in which every task is in ``train`` or ``val``.

    Groups of tasks are ordered by a hash of the seed and their first id, and fill the validation set while it has room.
    The same ids and the same seed give the same split on every machine.

    Args:
        val_fraction: share of the validation tasks, above 0 and below 1; rounded to tasks, at least 1.
        together: pairs of task ids that must be on the same side, such as near-duplicates.

    Raises:
        InvalidInput: the share is not between 0 and 1, or the pack has fewer than two tasks.
    """
    if not 0 < val_fraction < 1:
        raise InvalidInput(f"the share is {val_fraction}", field="val_fraction", hint="above 0 and below 1")
    if len(pack.tasks) < 2:
        raise InvalidInput("a pack of one task can't be divided", field="tasks", hint="add tasks")
    wanted = max(1, round(len(pack.tasks) * val_fraction))
    chosen: set[str] = set()
    groups = connected(pack.by_id, together)
    for group in sorted(groups, key=lambda ids: hashlib.sha256(f"{seed}:{ids[0]}".encode()).digest()):
        if len(chosen) + len(group) <= wanted:
            chosen.update(group)
    tasks = [replace(task, split="val" if task.task_id in chosen else "train") for task in pack.tasks]
    return Pack(pack.name, tasks, pack.format)


def connected(ids: Iterable[str], pairs: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Groups of ids that pairs connect, each sorted; an id without a pair is a group of its own."""
    group = {one: [one] for one in ids}
    for left, right in pairs:
        first, second = group[left], group[right]
        if first is not second:
            if len(first) < len(second):
                first, second = second, first
            first += second
            group.update(dict.fromkeys(second, first))
    return sorted({id(members): sorted(members) for members in group.values()}.values())
