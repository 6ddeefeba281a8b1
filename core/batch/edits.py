"""Answers that people edited, as rows of a plan: targets of supervised fine-tuning, or pairs with the original.

Only estimators with the option ``edits`` take them, and those are supervised or make pairs: an edited answer was never
sampled, so it has no log-probs, no reward and no advantage. Each edit is a prompt group of its own at the end of the
plan, with the ``prompt_uid`` of its step:

- target: one trajectory of one step, the captured prompt and the edited answer. The captured step leaves the plan.
- pair: two such trajectories, the edited answer as chosen and the captured one as rejected. Both have the prompt of the
  step, token for token.

The reward of the captured trajectory does not matter, nor whether its step is trainable: a person wrote the answer as
one to learn from. Limits of length, of batch size and of use apply. Edits are taken after the prompt groups until the
batch is full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from core.batch.funnel import MAX_VIEW_UIDS, REASONS, Excluded, all_of, quoted
from core.batch.recipe import Recipe
from core.batch.result import Plan
from core.credit.types import Bools, Ints
from core.pool.edits import ORIGINAL, Edit
from core.types import TokenSource, View


def takes_edits(recipe: Recipe) -> bool:
    """Whether plans of a recipe contain edited answers."""
    wanted = recipe.settings.get("edits", "without") != "without"
    return wanted and TokenSource.EDITED in recipe.trusted_sources


def takes_only_edits(recipe: Recipe) -> bool:
    """Whether plans of a recipe contain nothing but edited answers."""
    return takes_edits(recipe) and recipe.settings["edits"] == "only"


def n_edited_answers(plan: Plan) -> int:
    """Edited answers among a plan's steps."""
    return int(pc.sum(pc.equal(plan.steps["token_source"], TokenSource.EDITED.value)).as_py() or 0)


@dataclass(slots=True, eq=False)
class PlannedEdits:
    """The edits among a plan's candidates, in the order of their steps.

    Attributes:
        edits: [k].
        places: int64 [k], the candidate row of each edited step.
        rows: the candidate rows, as ``candidates.COLUMNS``.
        recipe: of the plan.
        alive: bool [k], those that are in the plan.
        excluded: reasons with their counts; a pair counts as two trajectories.
        remaining: (reason, edits left) after each stage.
    """

    edits: list[Edit]
    places: Ints
    rows: pa.Table
    recipe: Recipe
    base: View
    alive: Bools = field(init=False)
    excluded: list[Excluded] = field(default_factory=list)
    remaining: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """All of them are in the plan at first."""
        self.alive = np.ones(len(self.edits), dtype=np.bool_)

    @classmethod
    def among(cls, edits: Sequence[Edit], rows: pa.Table, recipe: Recipe, base: View) -> PlannedEdits:
        """The edits of these candidate rows."""
        by_step = {one.step_uid: one for one in edits}
        wanted = pa.array(sorted(by_step), pa.string())
        places = np.flatnonzero(pc.is_in(rows["step_uid"], wanted).to_numpy()).astype(np.int64)
        uids = rows["step_uid"].take(pa.array(places)).to_pylist()
        return cls([by_step[uid] for uid in uids], places, rows, recipe, base)

    @property
    def is_pairs(self) -> bool:
        """Whether each edit is a pair with the captured answer."""
        return self.recipe.estimator.pairs is not None

    @property
    def per_edit(self) -> int:
        """Trajectories, each of one step, that an edit becomes."""
        return 2 if self.is_pairs else 1

    def drop_in_use(self, in_use: pa.Array) -> None:
        """Exclude edits that other batches hold (string [n], as ``plan``'s ``in_use``)."""
        uids = pa.array([one.edit_uid for one in self.edits], pa.string())
        self._drop("edits_in_use", pc.is_in(uids, in_use).to_numpy(zero_copy_only=False))

    def drop_too_long(self) -> None:
        """Exclude edits that exceed the recipe's limits of tokens; a pair if one of its answers does or is empty."""
        recipe, n_prompt, n_response = self.recipe, self._column("n_prompt_tokens"), self._n_edited
        captured = self._column("n_response_tokens")
        if self.is_pairs:
            n_response = np.maximum(n_response, captured)
        # A comparison with an unknown length is False, so unknown ones leave.
        fits = n_prompt + n_response <= recipe.token_budget
        if self.is_pairs:
            fits &= captured > 0
        if recipe.max_prompt_tokens is not None:
            fits &= n_prompt <= recipe.max_prompt_tokens
        if recipe.max_response_tokens is not None:
            fits &= n_response <= recipe.max_response_tokens
        self._drop("edits_too_long", ~fits)

    def drop_over_batch(self, n_groups: int) -> None:
        """Exclude edits for which the batch has no room beside ``n_groups`` prompt groups."""
        if self.recipe.batch_size is not None:
            room = max(self.recipe.batch_size - n_groups, 0)
            self._drop("edits_over_batch", np.cumsum(self.alive) > room)

    def counts_before(self) -> tuple[int, int, int]:
        """Groups, trajectories and steps that all of them would be, before any left."""
        return len(self.edits), len(self.edits) * self.per_edit, len(self.edits) * self.per_edit

    def stages(self, groups: int, trajectories: int, steps: int) -> list[tuple[str, int, int, int]]:
        """``Plan.remaining`` of the stages of edits, which follow those of captured steps with these counts."""
        return [
            (reason, groups + n, trajectories + n * self.per_edit, steps + n * self.per_edit)
            for reason, n in self.remaining
        ]

    def chosen_rows(self) -> Ints:
        """The candidate rows of those in the plan: int64 [number of their steps]."""
        return np.repeat(self.places[self.alive], self.per_edit)

    def n_tokens(self) -> tuple[int, int]:
        """Prompt and response tokens of those in the plan."""
        n_prompt = int(self._column("n_prompt_tokens")[self.alive].sum()) * self.per_edit
        n_response = int(self._n_edited[self.alive].sum())
        if self.is_pairs:
            n_response += int(self._column("n_response_tokens")[self.alive].sum())
        return n_prompt, n_response

    def appended(
        self, steps: pa.Table, trajectories: pa.Table, pairs: pa.Table | None
    ) -> tuple[pa.Table, pa.Table, pa.Table | None]:
        """``Plan.steps``, ``Plan.trajectories`` and ``Plan.pairs`` with the edits at their ends."""
        group = int(trajectories["group"][-1].as_py()) + 1 if len(trajectories) else 0
        lines = self._lines(first=len(trajectories), first_step=len(steps), group=group)
        pair_lines = (
            [
                {
                    "prompt_uid": chosen["prompt_uid"],
                    "chosen": chosen["trajectory"],
                    "rejected": rejected["trajectory"],
                    "chosen_uid": chosen["trajectory_uid"],
                    "rejected_uid": rejected["trajectory_uid"],
                    "margin": None,
                }
                for chosen, rejected in zip(lines[::2], lines[1::2], strict=True)
            ]
            if pairs is not None
            else []
        )
        return (
            _with_lines(steps, lines),
            _with_lines(trajectories, lines),
            None if pairs is None else _with_lines(pairs, pair_lines),
        )

    def _lines(self, *, first: int, first_step: int, group: int) -> list[dict[str, Any]]:
        """A line per trajectory with the columns of its step and of itself."""
        chosen = np.flatnonzero(self.alive).tolist()
        captured = self.rows.take(pa.array(self.places[self.alive])).to_pylist()
        lines: list[dict[str, Any]] = []
        for number, (place, row) in enumerate(zip(chosen, captured, strict=True)):
            edit = self.edits[place]
            answers = [(str(edit.edit_uid), TokenSource.EDITED.value, len(edit.response_ids), None)]
            if self.is_pairs:
                version = row["policy_version"]
                answers.append((f"{edit.edit_uid}{ORIGINAL}", row["token_source"], row["n_response_tokens"], version))
            for uid, token_source, n_response, version in answers:
                lines.append(
                    {
                        "step_uid": uid,
                        "trajectory_uid": uid,
                        "prompt_uid": row["prompt_uid"],
                        "step_index": row["step_index"],
                        "token_source": token_source,
                        "policy_version": version,
                        "policy_version_min": version,
                        "policy_version_max": version,
                        "group": group + number,
                        "trajectory": first + len(lines),
                        "first_step": first_step + len(lines),
                        "n_steps": 1,
                        "n_prompt_tokens": row["n_prompt_tokens"],
                        "n_response_tokens": n_response,
                        "n_tokens": row["n_prompt_tokens"] + n_response,
                    }
                )
        return lines

    @property
    def _n_edited(self) -> np.ndarray:
        return np.array([len(one.response_ids) for one in self.edits], dtype=np.float64)

    def _column(self, name: str) -> np.ndarray:
        values: np.ndarray = self.rows[name].take(pa.array(self.places)).cast(pa.float64()).to_numpy()
        return values

    def _drop(self, reason: str, out: Bools) -> None:
        leaving = np.flatnonzero(out & self.alive).tolist()
        self.alive &= ~out
        self.remaining.append((reason, int(self.alive.sum())))
        if not leaving:
            return
        uids = [self.edits[i].step_uid for i in leaving]
        among = f"step_uid IN ({', '.join(map(quoted, uids[:MAX_VIEW_UIDS]))})"
        view = View(self.base.filters, all_of([self.base.where, among]))
        n = len(leaving)
        partial = n > MAX_VIEW_UIDS
        self.excluded.append(
            Excluded(reason, REASONS[reason], n, n * self.per_edit, n * self.per_edit, view, view_is_partial=partial)
        )


def _with_lines(table: pa.Table, lines: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A table with more rows; columns that a line lacks are null."""
    more = pa.table(
        {field.name: pa.array([line.get(field.name) for line in lines], field.type) for field in table.schema}
    )
    return pa.concat_tables([table, more])
