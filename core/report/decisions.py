"""Where the attempts of a prompt group part, and which tool call or sentence decides.

Each attempt is read as the sequence of its actions: the tool calls of a step, or, for an answer without calls, its
sentences. What a model writes beside a call is left out, since the environment sees only the call. The prefix tree of
these sequences (``core.tree``) has a branch point wherever attempts that acted alike so far act differently. Results of
tools are not actions: where they differ, attempts part at their next action.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from core.dialects.exact import exact_json
from core.pool import Pool
from core.tree.decisions import BranchPoint, branch_points
from core.tree.sequences import Sequences
from core.types import CallKind

_SENTENCE = re.compile(r".+?(?:[.!?…。！？]+(?=\s)|\n+|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Action:
    """One action of an attempt: a tool call (``call``) or a sentence (``sentence``), and the step that it is in."""

    kind: str
    text: str
    step_uid: str


@dataclass(frozen=True, slots=True)
class Way:
    """What some attempts do at a decision.

    Attributes:
        action: the first action in which they differ from the others; None: they end here.
        trajectory_uids: the attempts, in the group's order.
        mean: mean of their known rewards; None: none is known.
        n_scored: attempts whose reward is known.
    """

    action: Action | None
    trajectory_uids: tuple[str, ...]
    mean: float | None
    n_scored: int


@dataclass(frozen=True, slots=True)
class Decision:
    """A point where attempts that acted alike part.

    Attributes:
        n_shared: actions before it.
        last: the last shared action; None: they part at their first.
        ways: highest mean reward first.
        agreement: share of the attempts that do the most common.
        explained: share of the variance of the group's rewards that the ways' means explain
            (``core.tree.decisions.BranchPoint``); None: the rewards are equal or unknown.
    """

    n_shared: int
    last: Action | None
    ways: tuple[Way, ...]
    agreement: float
    explained: float | None

    @property
    def n_attempts(self) -> int:
        """Attempts that reach it."""
        return sum(len(one.trajectory_uids) for one in self.ways)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A prompt group's attempts and decisions.

    Attributes:
        task: the text of the task, whole.
        decisions: in order of the actions before them.
        deciding: the decision that explains most of the rewards, the earliest of equals; None where none explains any.
    """

    task: str
    decisions: tuple[Decision, ...]
    deciding: Decision | None


def summarise(pool: Pool, members: Sequence[Mapping[str, Any]]) -> GroupSummary:
    """The summary of a group's trajectories.

    Args:
        pool: their messages are read from it.
        members: ``trajectory_uid`` and ``reward`` of each, as in ``pool.groups.get``.
    """
    task, attempts = "", []
    for member in members:
        turns = pool.trajectories.turns(member["trajectory_uid"])
        task = task or task_of(turns)
        attempts.append(actions_of(turns))
    rewards = np.array([np.nan if one["reward"] is None else one["reward"] for one in members], dtype=np.float64)
    decisions = decisions_of([str(one["trajectory_uid"]) for one in members], attempts, rewards)
    explaining = [one for one in decisions if one.explained]
    deciding = max(explaining, key=lambda one: round(one.explained or 0.0, 9), default=None)
    return GroupSummary(task, tuple(decisions), deciding)


def decisions_of(
    trajectory_uids: Sequence[str], attempts: Sequence[Sequence[Action]], rewards: np.ndarray
) -> list[Decision]:
    """The decisions of attempts.

    Args:
        trajectory_uids: [n].
        attempts: the actions of each attempt, [n].
        rewards: float64 [n], NaN where unknown.
    """
    numbers: dict[tuple[str, str], int] = {}
    ids = [[numbers.setdefault((one.kind, one.text), len(numbers)) for one in actions] for actions in attempts]
    points = branch_points(Sequences.from_lists([[] for _ in ids], ids), rewards)
    return [_decision(point, trajectory_uids, attempts) for point in points]


def actions_of(turns: Sequence[Mapping[str, Any]]) -> list[Action]:
    """The actions of a trajectory's main steps, in order (``pool.trajectories.turns``)."""
    main = [one for one in turns if one.get("call_kind") == CallKind.MAIN] or list(turns)
    return [action for turn in main for action in _actions(turn)]


def task_of(turns: Sequence[Mapping[str, Any]]) -> str:
    """The first message of the user, whole; empty if there is none."""
    for turn in turns:
        for message in turn.get("messages") or ():
            if message.get("role") == "user" and (text := _text(message)).strip():
                return text
    return ""


def _decision(point: BranchPoint, uids: Sequence[str], attempts: Sequence[Sequence[Action]]) -> Decision:
    ways = []
    for branch in point.branches:
        members = branch.members.tolist()
        action = None if branch.ends else attempts[members[0]][point.depth]
        ways.append(Way(action, tuple(uids[i] for i in members), branch.mean, branch.n_known))
    first = attempts[int(point.branches[0].members[0])]
    last = first[point.depth - 1] if point.depth else None
    return Decision(point.depth, last, tuple(ways), point.agreement, point.explained)


def _actions(turn: Mapping[str, Any]) -> Iterator[Action]:
    message, uid = turn.get("response_message") or {}, str(turn["step_uid"])
    calls = list(_calls(message))
    for name, arguments in calls:
        yield Action("call", f"{name}({arguments})", uid)
    if not calls:
        for sentence in _SENTENCE.findall(_visible(_text(message))):
            if text := " ".join(sentence.split()):
                yield Action("sentence", text, uid)


def _calls(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, arguments as JSON with sorted keys) of the tool calls."""
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield str(function.get("name")), _canonical(function.get("arguments"))
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping) and block.get("type") == "tool_use":
            yield str(block.get("name")), _canonical(block.get("input"))


def _canonical(arguments: Any) -> str:
    try:
        value = exact_json(arguments or "{}") if isinstance(arguments, str) else arguments
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except (ValueError, TypeError):
        return str(arguments)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if not isinstance(content, list):
        return str(content or "")
    return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))


def _visible(text: str) -> str:
    """A text without the thinking before it."""
    before, end, after = text.partition("</think>")
    return after if end and before.lstrip().startswith("<think>") else text
