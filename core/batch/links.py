"""The predecessor of each step in its trajectory, for estimators that chain steps.

Steps are ordered, but a step does not always continue the one before it: choices of one call answer the same prompt,
and a fork returns to an earlier state. The transition and the call's prompt decide:

- ``extends``, ``realigned``, ``tail_replaced``: the predecessor is the step that it was stored against.
- ``compacted``, or unknown: the step before it.
- ``forked``: another answer to a prompt that was answered before has the predecessor of that earlier step, however its
  client wrote the history. For any other fork it is the latest earlier step whose prompt and answer its prompt
  contains; none if there is no such step. A white-box producer numbers its steps itself, and its prompts need not
  contain the conversation: there a fork that contains no earlier step has the step before it as predecessor.
- The same index as the step before it: a choice of the same call, with the same predecessor.

If a predecessor was excluded, its own predecessor takes its place.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from core.batch.candidates import Candidates
from core.credit.types import Bools, Ints
from core.types import Source, Transition

CONTINUES = (Transition.EXTENDS, Transition.REALIGNED, Transition.TAIL_REPLACED)


def origins(candidates: Candidates, alive: Bools, links: pa.Table) -> Ints:
    """The candidate row that precedes each row, -1 for none: int64 [n_steps]. Only rows of ``alive`` count.

    Args:
        candidates: the candidate steps.
        alive: bool [n_steps], the steps to chain.
        links: a row per candidate, ``link`` of ``pool.training.step_fields``.
    """
    n = candidates.n_steps
    rows = np.flatnonzero(alive)
    before = np.full(n, -1, dtype=np.int64)
    if not len(rows):
        return before
    previous = np.full(n, -1, dtype=np.int64)
    same = candidates.trajectory[rows[1:]] == candidates.trajectory[rows[:-1]]
    previous[rows[1:][same]] = rows[:-1][same]
    parent = candidates.rows_of(links["parent_step_id"])
    transition = links["transition"].combine_chunks()
    forked = pc.fill_null(pc.equal(transition, Transition.FORKED.value), False).to_numpy(zero_copy_only=False)
    goes_on = pc.is_in(transition, pa.array([one.value for one in CONTINUES], transition.type))
    to_parent = goes_on.to_numpy(zero_copy_only=False) & (parent >= 0)
    index = candidates.numbers("step_index")
    again = (previous >= 0) & (index == index[previous])
    before[rows] = previous[rows]
    odd = alive & (again | forked | (to_parent & (parent != previous)))
    if odd.any():
        shared = pc.fill_null(links["n_shared_tokens"], 0).to_numpy()
        prompt = np.nan_to_num(candidates.numbers("n_prompt_tokens"))
        length = np.nan_to_num(candidates.numbers("n_prompt_tokens") + candidates.numbers("n_response_tokens"))
        produced = pc.equal(links["source"], Source.WHITEBOX.value).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(odd).tolist():
            if again[row]:
                before[row] = before[previous[row]]
                continue
            at = int(parent[row])
            if forked[row]:
                at = _forked_from(row, before, parent, alive, forked, shared, prompt, length)
            while at >= 0 and not alive[at]:
                at = int(parent[at])
            none_named = at < 0 and (produced[row] or not forked[row])
            before[row] = previous[row] if none_named else at
    return before


def _forked_from(
    row: int, before: Ints, parent: Ints, alive: Bools, forked: Bools, shared: np.ndarray, prompt: np.ndarray,
    length: np.ndarray,
) -> int:  # fmt: skip
    """The predecessor of a forked step; those of earlier steps are known."""
    at = int(parent[row])
    while at >= 0:
        origin = int(before[at] if alive[at] else parent[at])
        if 0 < prompt[row] == prompt[at] == shared[row]:
            if alive[at] or not forked[at]:
                return origin
        elif length[at] <= shared[row]:
            return at
        at = origin
    return at
