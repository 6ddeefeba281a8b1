"""Filters on the branches of a trajectory, as ClawGym's pipeline has them (ClawGym II, arXiv 2608.16798).

A trajectory is a tree: a step's predecessor is the step whose prompt and answer its prompt continues (``links``). A
compacted step begins a new branch. A leaf is a step that no step continues. Only steps that are still in count, so
auxiliary, retry and sub-agent calls are no leaves.
"""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from core.batch.candidates import Candidates
from core.batch.funnel import Funnel
from core.batch.links import origins
from core.batch.recipe import Recipe
from core.batch.source import PlanSource
from core.credit.types import Bools, Ints
from core.types import Transition


def drop_branches(source: PlanSource, funnel: Funnel, recipe: Recipe) -> None:
    """Exclude dead leaves, steps after a compaction, and trajectories with too many leaves, as the recipe says."""
    if not (recipe.drop_dead_leaves or recipe.drop_compacted or recipe.max_leaves is not None):
        return
    candidates = funnel.candidates
    links = source.step_fields(candidates.step_ids, ["link"])
    compacted = pc.equal(links["transition"].combine_chunks(), Transition.COMPACTED.value)
    begins: Bools = pc.fill_null(compacted, False).to_numpy(zero_copy_only=False).astype(np.bool_)
    shared = pc.fill_null(links["n_shared_tokens"], 0).to_numpy()
    parent = candidates.rows_of(links["parent_step_id"])
    prompt = np.nan_to_num(candidates.numbers("n_prompt_tokens"))
    # Another answer to the prompt of a step that begins a branch begins one too.
    for row in np.flatnonzero((prompt > 0) & (shared == prompt) & (parent >= 0)).tolist() if begins.any() else ():
        begins[row] |= begins[parent[row]] and prompt[row] == prompt[parent[row]]
    before = np.where(begins, -1, origins(candidates, funnel.alive, links))
    if recipe.drop_dead_leaves:
        funnel.drop_named_steps("dead_leaf", dead_leaves(candidates, funnel.alive, before, shared))
    if recipe.drop_compacted:
        funnel.drop_named_steps("compacted", begins[_roots(before)])
    if recipe.max_leaves is not None:
        ends = candidates.trajectory[leaves(funnel.alive, before)]
        n_leaves = np.bincount(ends, minlength=len(candidates.group))
        funnel.drop_trajectories("too_many_leaves", n_leaves > recipe.max_leaves)


def leaves(alive: Bools, before: Ints) -> Bools:
    """The steps of ``alive`` that none of them continues: bool [n]."""
    ends = alive.copy()
    continued = before[alive]
    ends[continued[continued >= 0]] = False
    return ends


def dead_leaves(candidates: Candidates, alive: Bools, before: Ints, shared: np.ndarray) -> Bools:
    """The leaves whose prompt was sent again later, by a call of its own: bool [n].

    Args:
        candidates: the candidate steps.
        alive: bool [n], the steps that count.
        before: int64 [n], predecessors of ``alive``, -1 for none.
        shared: int64 [n], tokens that a step's prompt shares with the step that it was stored against.
    """
    out = np.zeros(len(alive), dtype=np.bool_)
    rows = np.flatnonzero(leaves(alive, before))
    prompt = np.nan_to_num(candidates.numbers("n_prompt_tokens"))
    index = candidates.numbers("step_index")
    again = alive & (prompt > 0) & (shared == prompt)
    latest: dict[tuple[int, int, float], float] = {}
    for row in np.flatnonzero(again).tolist():
        latest[int(candidates.trajectory[row]), int(before[row]), float(prompt[row])] = float(index[row])
    for row in rows.tolist() if latest else ():
        same = int(candidates.trajectory[row]), int(before[row]), float(prompt[row])
        out[row] = index[row] < latest.get(same, -1.0)
    return out


def _roots(before: Ints) -> Ints:
    """The first step of each step's branch: int64 [n]."""
    roots = np.where(before >= 0, before, np.arange(len(before)))
    while (above := roots[roots]).tobytes() != roots.tobytes():
        roots = above
    return roots
