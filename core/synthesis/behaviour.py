"""Tasks that are solved by the same actions: attempts that share nearly all of their path in one prefix tree.

The behaviour of an attempt is the sequence of its tool calls: of each, the name and the arguments, as words. Two
attempts are near-equal if their common prefix has at least ``SHARED`` of the words of the longer one. Two tasks are
near-equal if at least ``SHARE`` of the solved attempts at each have a near-equal solved attempt at the other. Only
attempts that solved their task count: agents that give up behave alike everywhere.

Thoughts and texts do not count. Actions in another order are another behaviour, since a prefix ends at the first
difference; so this finds tasks that are the same in other words, and never says that two tasks differ.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.tree.order import sort_with_lcp
from core.tree.sequences import Sequences

SHARED = 0.8
"""Least share of the longer attempt's words that two near-equal attempts begin with."""
SHARE = 0.5
"""Least share of a task's solved attempts that have a near-equal one at the other task."""
_EPS = 1e-9
_WORD = re.compile(r"\w+|[^\w\s]")

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SameAs:
    """The first earlier task with near-equal behaviour; ``share`` of the solved attempts of each, the lower one."""

    task_id: str
    share: float


def words_of(steps: Iterable[Mapping[str, Any]]) -> Words:
    """The behaviour of an attempt, from its steps in order, as the pool gives them: words of the tool calls.

    Steps of another kind than ``main`` (titles, summaries, retries, sub-agents) do not count.
    """
    words: list[str] = []
    for step in steps:
        message = step.get("response_message")
        if step.get("call_kind") != "main" or not isinstance(message, Mapping):
            continue
        for call in message.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                words += [f"call:{function.get('name')}", *_WORD.findall(_arguments(function.get("arguments")))]
    return tuple(words)


def _arguments(value: Any) -> str:
    """Arguments as text that does not depend on the order of their names or on white space."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def same_behaviour(
    behaviours: Mapping[str, Sequence[Words]], *, shared: float = SHARED, share: float = SHARE
) -> dict[str, SameAs]:
    """Task id -> the first earlier task, in the order of ``behaviours``, that it is near-equal to; others are missing.

    Tasks that are near-equal to an earlier one are left out when later ones are compared.

    Args:
        behaviours: task id -> the behaviours of the attempts that solved it; empty ones do not count.
        shared, share: see ``SHARED`` and ``SHARE``.
    """
    counts: dict[Words, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    totals: dict[str, int] = defaultdict(int)
    for task_id, attempts in behaviours.items():
        for words in attempts:
            if words:
                counts[words][task_id] += 1
                totals[task_id] += 1
    distinct = list(counts)
    # Of each pair of tasks: attempts at the first that have a near-equal one at the second, by behaviour.
    near: dict[tuple[str, str], set[int]] = defaultdict(set)
    for i, j in _near(distinct, shared):
        for one in counts[distinct[i]]:
            for other in counts[distinct[j]]:
                if one != other:
                    near[one, other].add(i)
                    near[other, one].add(j)
    order = {task_id: at for at, task_id in enumerate(behaviours)}
    same: dict[str, SameAs] = {}
    for later, earlier in sorted(near, key=lambda pair: (order[pair[0]], order[pair[1]])):
        if order[earlier] < order[later] and earlier not in same and later not in same:
            pair = (later, earlier), (earlier, later)
            lower = min(sum(counts[distinct[i]][a] for i in near[a, b]) / totals[a] for a, b in pair)
            if lower >= share:
                same[later] = SameAs(earlier, lower)
    return same


def _near(distinct: Sequence[Words], shared: float) -> Iterator[tuple[int, int]]:
    """Pairs of behaviours whose common prefix is long enough, each with itself.

    In the sorted order of the tree, those that share a prefix with one are its neighbours, and the common prefix with
    a later one is the least of the steps between them.
    """
    yield from ((i, i) for i in range(len(distinct)))
    ids: dict[str, int] = {}
    encoded = [[ids.setdefault(word, len(ids)) for word in words] for words in distinct]
    order, lcp = (one.tolist() for one in sort_with_lcp(Sequences.from_lists(encoded, [[]] * len(encoded))))
    for rank, i in enumerate(order):
        common = len(distinct[i])
        for other in range(rank + 1, len(order)):
            j = order[other]
            common = min(common, lcp[other])
            if common < shared * len(distinct[i]) - _EPS:
                break
            if common >= shared * len(distinct[j]) - _EPS:
                yield i, j
