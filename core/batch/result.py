"""The plan: chosen steps and trajectories as columns, reasons, counts, and a packed layout on demand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from core.batch.funnel import Excluded
from core.batch.layout import PlanLayout, lay_out
from core.batch.recipe import Recipe
from core.batch.source import PlanSource
from core.credit.types import Ints
from core.pool.store.tablehash import update_hash
from core.tree.sequences import ragged_index
from core.types import View

LAYOUT_TOKENS_MAX = 200_000_000
LAYOUT_STEPS_MAX = 50_000
"""Above one of these, packing takes more than a second or two: ``totals`` leaves the packed count unknown, and
``Plan.layout`` still computes it. A step costs 25 µs, however few tokens it has."""


@dataclass(frozen=True, slots=True)
class PlanTrajectory:
    """One chosen trajectory. ``advantage`` is None for supervised use and where it differs by step."""

    trajectory_uid: str
    step_uids: list[str]
    reward: float | None
    advantage: float | None
    n_tokens: int
    n_response_tokens: int
    policy_version_min: int | None
    policy_version_max: int | None
    step_advantages: list[float | None]


@dataclass(frozen=True, slots=True)
class PlanGroup:
    """One chosen prompt group."""

    prompt_uid: str
    trajectories: list[PlanTrajectory]


@dataclass(frozen=True, eq=False)
class Plan:
    """The result of view + recipe.

    Attributes:
        view, recipe: the request.
        hash: sha256 of recipe, view, and everything of the chosen steps that reaches a file: two plans of one hash
            give the same bytes in every format.
        policy_version: the version that staleness counts from; None when unknown or not requested.
        steps: chosen steps in plan order: step_uid, trajectory_uid, prompt_uid, step_index, group, trajectory
            (numbers from 0), n_prompt_tokens, n_response_tokens, token_source, policy_version, reward,
            trajectory_reward, advantage (null: unassigned), reward_share (its part of the trajectory's reward: its own,
            and on the last step what no step earned). Edited answers are at the end, with the token source
            ``edited`` and a reference to the edit (``core.pool.edits``) as step_uid and trajectory_uid.
        trajectories: chosen trajectories in plan order: trajectory_uid, prompt_uid, group, first_step, n_steps,
            n_tokens, n_response_tokens, reward, advantage, policy_version_min, policy_version_max.
        excluded: reasons that took something out.
        remaining: (reason, groups, trajectories, steps) left after each stage.
        reader: tokens and texts are read from it.
        level: ``trajectory``, ``step`` or ``token``: the finest unit whose advantages differ; None: unassigned. At
            token level ``steps`` has ``token_advantages`` (list of float32, one per response token; null
            elsewhere), and ``token_returns`` where the estimator gives them.
        lacks: the first messages on steps that lack a field which the algorithm needs.
        pairs: preference pairs (chosen, rejected: numbers of ``trajectories``; chosen_uid, rejected_uid,
            prompt_uid, margin), or None.
        dataset_version: the version that it was made from; ``reader`` then gives the version's tokens. None: the pool.
        first_trajectory: where this is a part of a plan, the number of its first trajectory in that plan.
    """

    view: View
    recipe: Recipe
    hash: str
    policy_version: int | None
    steps: pa.Table
    trajectories: pa.Table
    excluded: list[Excluded]
    remaining: list[tuple[str, int, int, int]]
    reader: PlanSource
    level: str | None = None
    lacks: list[str] = field(default_factory=list)
    pairs: pa.Table | None = None
    dataset_version: dict[str, Any] | None = None
    first_trajectory: int = 0

    @property
    def uid(self) -> str:
        """A short name: the first digits of the hash."""
        return f"plan-{self.hash[:16]}"

    @cached_property
    def step_uids(self) -> list[str]:
        """Chosen steps in plan order."""
        uids: list[str] = self.steps["step_uid"].to_pylist()
        return uids

    @cached_property
    def lengths(self) -> Ints:
        """Tokens (prompt and response) of each chosen step: int64 [n]."""
        n_prompt: Ints = self.steps["n_prompt_tokens"].to_numpy()
        n_response: Ints = self.steps["n_response_tokens"].to_numpy()
        return n_prompt.astype(np.int64) + n_response

    @property
    def layout(self) -> PlanLayout:
        """Packed rows under the recipe's token budget; the first access reads all tokens of the plan."""
        return self.pack()

    @property
    def is_packed_at_once(self) -> bool:
        """Whether packing is fast enough to be done while a page or a caller waits."""
        return self.counts["n_tokens"] <= LAYOUT_TOKENS_MAX and self.counts["n_steps"] <= LAYOUT_STEPS_MAX

    @property
    def is_packed(self) -> bool:
        """Whether ``layout`` is computed already."""
        return "_layout" in self.__dict__

    def pack(self, progress: Callable[[int, int], None] | None = None) -> PlanLayout:
        """``layout``; ``progress`` is called with (tokens read, tokens in all); an exception stops the packing."""
        if not self.is_packed:
            group = self.steps["group"].to_numpy().astype(np.int64)
            recipe = self.recipe
            self.keep_layout(
                lay_out(self.reader, self.step_uids, group, self.lengths, recipe.token_budget, recipe.n_ranks, progress)
            )
        layout: PlanLayout = self.__dict__["_layout"]
        return layout

    @cached_property
    def layout_key(self) -> str:
        """sha256 over the inputs of the packed rows: steps, groups, dataset version, token budget."""
        digest = hashlib.sha256(orjson.dumps([self.recipe.token_budget, self.recipe.dataset, len(self.steps)]))
        update_hash(digest, self.steps.select(["step_uid", "group"]))
        return digest.hexdigest()

    def keep_layout(self, layout: PlanLayout) -> None:
        """Set a layout that was made from the same steps and budget."""
        self.__dict__["_layout"] = layout.for_ranks(self.recipe.n_ranks)

    def part(self, trajectories: Sequence[int]) -> Plan:
        """A plan of some trajectories, by number, in the order given; they are renumbered."""
        chosen = self.trajectories.take(pa.array(list(trajectories), pa.int64()))
        first, n_steps = (chosen[name].to_numpy().astype(np.int64) for name in ("first_step", "n_steps"))
        steps = self.steps.take(pa.array(ragged_index(first, n_steps)))
        number = np.repeat(np.arange(len(n_steps), dtype=np.int32), n_steps)
        starts = np.cumsum(n_steps) - n_steps
        return replace(
            self,
            steps=steps.set_column(steps.schema.get_field_index("trajectory"), "trajectory", pa.array(number)),
            trajectories=chosen.set_column(chosen.schema.get_field_index("first_step"), "first_step", pa.array(starts)),
            pairs=None,
        )

    @property
    def n_groups(self) -> int:
        """Chosen groups."""
        return self.remaining[-1][1]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Groups, trajectories, steps, tokens, tokens in the loss: known without reading a token."""
        return {
            "n_groups": self.n_groups,
            "n_trajectories": len(self.trajectories),
            "n_steps": len(self.steps),
            "n_tokens": int(self.lengths.sum()),
            "n_loss_tokens": int(self.steps["n_response_tokens"].to_numpy().sum()),
        }

    @cached_property
    def totals(self) -> dict[str, Any]:
        """``counts`` and packing; ``n_packed_tokens`` and ``token_ratio`` are None unless ``is_packed_at_once``."""
        packed = self.layout if self.is_packed_at_once else None
        return {
            **self.counts,
            "n_packed_tokens": packed.n_packed_tokens if packed else None,
            "token_ratio": packed.token_ratio if packed else None,
        }

    @cached_property
    def groups(self) -> list[PlanGroup]:
        """Chosen groups as objects, in plan order."""
        groups: list[PlanGroup] = []
        last = -1
        uids = self.step_uids
        advantages = self.steps["advantage"].to_pylist()
        for row in self.trajectories.to_pylist():
            if row["group"] != last:
                groups.append(PlanGroup(row["prompt_uid"], []))
                last = row["group"]
            span = slice(row["first_step"], row["first_step"] + row["n_steps"])
            steps = uids[span]
            groups[-1].trajectories.append(
                PlanTrajectory(
                    trajectory_uid=row["trajectory_uid"],
                    step_uids=steps,
                    reward=row["reward"],
                    advantage=row["advantage"],
                    n_tokens=row["n_tokens"],
                    n_response_tokens=row["n_response_tokens"],
                    policy_version_min=row["policy_version_min"],
                    policy_version_max=row["policy_version_max"],
                    step_advantages=advantages[span],
                )
            )
        return groups

    def first_groups(self, first: int, n: int) -> list[PlanGroup]:
        """``groups[first : first + n]`` without creating the others."""
        group = self.trajectories["group"].to_numpy()
        return self.part(np.flatnonzero((group >= first) & (group < first + n)).tolist()).groups

    def funnel_json(self) -> list[dict[str, Any]]:
        """The counts left after each stage, candidates first."""
        names = ("after", "n_groups", "n_trajectories", "n_steps")
        return [dict(zip(names, row, strict=True)) for row in self.remaining]

    def view_json(self) -> dict[str, Any]:
        """The view as JSON values."""
        return {"filters": dict(self.view.filters), "where": self.view.where}

    def to_json(self, max_items: int | None = None) -> dict[str, Any]:
        """The shape of ``POST plans``, and more: uid, hash, view, recipe, funnel, layout statistics.

        ``max_items``: the greatest number of groups, and of pairs, in the result; None: all.
        """
        totals = self.totals
        groups, pairs = self.groups if max_items is None else self.first_groups(0, max_items), self.pairs
        if pairs is not None and max_items is not None:
            pairs = pairs.slice(0, max_items)
        return {
            "uid": self.uid,
            "hash": self.hash,
            "view": self.view_json(),
            "recipe": self.recipe.to_json(),
            "policy_version": self.policy_version,
            "totals": totals,
            "groups": [
                {
                    "prompt_uid": group.prompt_uid,
                    "trajectories": [
                        {
                            "trajectory_uid": one.trajectory_uid,
                            "step_uids": one.step_uids,
                            "reward": one.reward,
                            "advantage": one.advantage,
                            "step_advantages": one.step_advantages,
                            "n_tokens": one.n_tokens,
                            "n_response_tokens": one.n_response_tokens,
                            "policy_version_min": one.policy_version_min,
                            "policy_version_max": one.policy_version_max,
                        }
                        for one in group.trajectories
                    ],
                }
                for group in groups
            ],
            "excluded": [reason.to_json() for reason in self.excluded],
            "funnel": self.funnel_json(),
            "level": self.level,
            "lacks": self.lacks,
            "pairs": None if pairs is None else pairs.to_pylist(),
            "layout": None if totals["n_packed_tokens"] is None else self.layout.to_json(),
        }
