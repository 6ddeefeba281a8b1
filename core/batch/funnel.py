"""The funnel: the reason why each candidate is not in the plan, counted once, with a view that selects its rows.

Stages run in the order of ``REASONS``; a step leaves at the first that applies. A trajectory is counted where its
last candidate step leaves, a group where its last trajectory does. So over all reasons plus the chosen, steps,
trajectories and groups each add up to the candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from core.batch.candidates import Candidates
from core.credit.types import Bools
from core.types import View

REASONS: dict[str, str] = {
    "in_use": "Leased to a trainer, or consumed as often as the recipe allows",
    "not_edited": "Captured, and the recipe takes only edited answers",
    "edited": "A person edited the answer: the edited one is trained on in its place",
    "labelled_bad": "Labelled bad, the step or its whole trajectory",
    "incomplete": "Trajectory not complete",
    "unscored": "No reward, and the algorithm needs one",
    "uncertain": "Trajectory not named and several attempts fit: use session keys, or label it trainable",
    "not_trainable": "Step not trainable: auxiliary, retry, sub-agent, failed, mismatched, or labelled so",
    "no_tokens": "No token ids, or an empty answer",
    "token_source": "Token ids not trusted enough for the algorithm",
    "over_length": "Step longer than the token budget",
    "prompt_too_long": "Prompt longer than the recipe allows",
    "response_too_long": "Response longer than the recipe allows",
    "not_last_step": "Not the trajectory's last step, and the recipe trains only that one",
    "temperature": "Sampled at a different or unknown temperature",
    "dead_leaf": "Nothing continues the answer, and its prompt was sent again later",
    "compacted": "Follows a compaction of the context",
    "too_many_leaves": "Trajectory with more ends than the recipe allows",
    "version_unknown": "Policy version unknown, so staleness is unknown",
    "stale": "Sampled by a policy older than allowed",
    "baseline": "Greedy rollout: the group's baseline, not trained on",
    "broken_chain": "A step of the trajectory is missing, and the algorithm needs all of them in order",
    "lacks_field": "A step lacks a field that the algorithm needs (value, anchor, log-probs, baseline)",
    "rejected": "Not selected by reward",
    "group_too_small": "Fewer trajectories left in the group than needed",
    "over_rollouts": "More trajectories than the recipe's rollouts",
    "no_spread": "All rewards of the group are equal",
    "over_batch": "Beyond the batch size",
    "edits_in_use": "Edited answers that are leased to a trainer, or consumed as often as the recipe allows",
    "edits_too_long": "Edited answers longer than the recipe allows, prompt included; pairs with an empty answer",
    "edits_over_batch": "Edited answers beyond the batch size",
}
"""Reason -> its description, in the order in which they apply."""

MAX_VIEW_UIDS = 500


@dataclass(frozen=True, slots=True)
class Excluded:
    """One exclusion reason with its counts.

    Attributes:
        reason: key of ``REASONS``.
        label: its description for pages.
        n_groups, n_trajectories, n_steps: how many are excluded for it.
        view: finds the ``n_steps`` rows; for the reasons of edits the steps that were edited.
        view_is_partial: the view names only the first ``MAX_VIEW_UIDS`` trajectories.
    """

    reason: str
    label: str
    n_groups: int
    n_trajectories: int
    n_steps: int
    view: View
    view_is_partial: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "reason": self.reason,
            "label": self.label,
            "n_groups": self.n_groups,
            "n_trajectories": self.n_trajectories,
            "n_steps": self.n_steps,
            "view": {"filters": dict(self.view.filters), "where": self.view.where},
            "view_is_partial": self.view_is_partial,
        }


@dataclass(slots=True, eq=False)
class Funnel:
    """The remaining candidates, and those excluded so far.

    Attributes:
        candidates: the candidate steps.
        base: view of the candidates; reasons add their condition to it.
        alive: bool [n_steps].
        excluded: reasons that excluded something.
        remaining: (reason, groups, trajectories, steps) left after each stage, "candidates" first.
    """

    candidates: Candidates
    base: View
    alive: Bools
    excluded: list[Excluded] = field(default_factory=list)
    remaining: list[tuple[str, int, int, int]] = field(default_factory=list)
    _passed: list[str] = field(default_factory=list)

    @classmethod
    def start(cls, candidates: Candidates, view: View, channel: str) -> Funnel:
        """A funnel that excludes nothing yet."""
        if "channel" in view.filters:
            base = View(view.filters, all_of([view.where, f"channel = {quoted(channel)}"]))
        else:
            base = View({**view.filters, "channel": channel}, view.where)
        funnel = cls(candidates, base, np.ones(candidates.n_steps, dtype=np.bool_))
        funnel.remaining.append(("candidates", *funnel.counts()))
        return funnel

    def counts(self) -> tuple[int, int, int]:
        """Remaining groups, trajectories and steps."""
        trajectories = self.alive_trajectories()
        groups = np.unique(self.candidates.group[trajectories])
        return len(groups), int(trajectories.sum()), int(self.alive.sum())

    def alive_trajectories(self) -> Bools:
        """bool [n_trajectories], those with a remaining step."""
        n = np.bincount(self.candidates.trajectory[self.alive], minlength=len(self.candidates.group))
        return n > 0

    def drop_steps(self, reason: str, out: Bools, condition: str, otherwise: str) -> None:
        """Exclude steps.

        Args:
            reason: key of ``REASONS``.
            out: bool [n_steps].
            condition: the same as an expression over step columns.
            otherwise: its opposite, written out because a null is neither true nor false.
        """
        where = all_of([self.base.where, *self._passed, condition])
        self._drop(reason, out, View(self.base.filters, where), partial=False)
        self._passed.append(otherwise)

    def drop_named_steps(self, reason: str, out: Bools) -> None:
        """Drop steps for a reason that no expression describes: the view lists their uids."""
        leaving = out & self.alive
        uids = self.candidates.rows["step_uid"].filter(pa.array(leaving)).to_pylist()
        named, partial = uids[:MAX_VIEW_UIDS], len(uids) > MAX_VIEW_UIDS
        among = f"step_uid IN ({', '.join(map(quoted, named))})"
        where = all_of([self.base.where, *self._passed, among if named else ""])
        self._drop(reason, out, View(self.base.filters, where), partial=partial)
        if named:
            self._passed.append(f"NOT {among}")

    def drop_trajectories(self, reason: str, out: Bools) -> None:
        """Exclude trajectories: bool [n_trajectories]."""
        leaving = out & self.alive_trajectories()
        uids = self.candidates.trajectory_uids.filter(pa.array(leaving))
        filters = {**self.base.filters, "trajectory_uid": uids[:MAX_VIEW_UIDS].to_pylist()}
        view = View(filters, all_of([self.base.where, *self._passed]))
        self._drop(reason, leaving[self.candidates.trajectory], view, partial=len(uids) > MAX_VIEW_UIDS)

    def _drop(self, reason: str, out: Bools, view: View, *, partial: bool) -> None:
        before = self.remaining[-1][1:]
        self.alive = self.alive & ~out
        after = self.counts()
        groups, trajectories, steps = (a - b for a, b in zip(before, after, strict=True))
        self.remaining.append((reason, *after))
        if steps:
            self.excluded.append(Excluded(reason, REASONS[reason], groups, trajectories, steps, view, partial))


def all_of(conditions: Sequence[str]) -> str:
    """Conditions joined by AND, empty ones left out. A line break ends a ``--`` comment that one may hold."""
    return " AND ".join(
        f"({condition}\n)" if "--" in condition else f"({condition})" for condition in conditions if condition.strip()
    )


def quoted(text: str) -> str:
    """A text literal of the expression language."""
    return "'" + text.replace("'", "''") + "'"
