"""Loss terms of packed rows: one term per sampled token and owner, not one scalar per packed token.

Rollouts that sampled the same tokens share packed positions, but have different advantages and old log-probs. Clipping
depends on both, so each rollout has separate terms. A named policy decides how terms of shared tokens are combined. The
weight of each term in the batch's loss (``coefficients``) is fixed before a batch is split.

Steps ``5 6 -> 7`` (advantage 1) and ``5 6 -> 7 8`` (advantage -1) packed as ``5 6 7 8``::

    packed_pos  1 | 1 2     the position whose logits predict the target
    target      7 | 7 8
    advantage   1 | -1 -1
    step        0 | 1 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput
from core.tree.build import PackedTree
from core.tree.sequences import Float32, Int32, Int64, Sequences, ragged_index

Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class LossTerms:
    """M loss terms of one packed row.

    Attributes:
        packed_pos: int64 [M], position whose logits predict the target.
        target_pos: int64 [M], position of the target itself.
        target: int32 [M], token id.
        old_logp: float32 [M], log-prob when it was sampled, nats; NaN where unknown.
        advantage: float32 [M]; NaN where unassigned.
        weight: float64 [M], the number of occurrences that the term represents.
        step_weight: float64 [M], Σ weight of all terms of the same step (a step is never split over rows).
        step: int64 [M], index of the owner in the source ``Sequences``.
        n_unpredicted: response tokens without a token before them: nothing predicts them, so they have no term.
    """

    packed_pos: Int64
    target_pos: Int64
    target: Int32
    old_logp: Float32
    advantage: Float32
    weight: Float64
    step_weight: Float64
    step: Int64
    n_unpredicted: int = 0

    def __len__(self) -> int:
        return len(self.target)

    def take(self, chosen: NDArray[Any]) -> LossTerms:
        """The chosen terms (indices or a bool mask), in order."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in _COLUMNS})


_COLUMNS = ("packed_pos", "target_pos", "target", "old_logp", "advantage", "weight", "step_weight", "step")


@dataclass(frozen=True, slots=True, eq=False)
class Denominators:
    """The denominators of a batch's loss, exported with the data.

    Attributes:
        weight: Σ weight of all terms of the batch.
        n_steps: steps that have terms.
    """

    weight: float
    n_steps: int


def loss_terms(
    row: PackedTree,
    sequences: Sequences,
    advantages: NDArray[Any] | None = None,
    *,
    token_advantages: NDArray[Any] | None = None,
    policy: str = "occurrence_sum",
) -> LossTerms:
    """The loss terms of a packed row; steps in the order of ``row.members``.

    Args:
        row: a packed row over ``sequences``.
        sequences: the source; its ``logprobs`` become ``old_logp``, and its ``masked`` tokens have no term.
        advantages: [n], one per sequence; NaN where unassigned.
        token_advantages: instead, one per response token of all sequences one after another
            (``sequences.response_index()``). Neither: none is assigned.
        policy: a name in ``POLICIES``.

    Raises:
        InvalidInput: an unknown policy, or advantages of another length.
    """
    if policy not in POLICIES:
        raise InvalidInput(f"no loss policy {policy!r}", field="policy", hint=f"one of {', '.join(POLICIES)}")
    n_response = sequences.n_response
    members = row.members
    skipped = np.minimum(np.where(sequences.n_prompt[members] == 0, 1, 0), n_response[members])
    first = sequences.n_prompt[members] + skipped
    count = n_response[members] - skipped
    lengths = sequences.lengths[members]
    path = row.restore_index()
    in_path = ragged_index(np.cumsum(lengths) - lengths + first, count)
    in_source = ragged_index(sequences.offsets[:-1][members] + first, count)
    before = np.cumsum(n_response) - n_response
    in_responses = ragged_index(before[members] + skipped, count)
    step = np.repeat(members, count)
    terms = LossTerms(
        packed_pos=path[in_path - 1],
        target_pos=path[in_path],
        target=sequences.ids[in_source],
        old_logp=np.full(len(step), np.nan, np.float32)
        if sequences.logprobs is None
        else sequences.logprobs[in_source],
        advantage=_advantages(sequences, advantages, token_advantages, step, in_responses),
        weight=np.ones(len(step)),
        step_weight=np.ones(len(step)),
        step=step,
        n_unpredicted=int(skipped.sum()),
    )
    if sequences.masked is not None:
        terms = terms.take(~sequences.masked[in_source])
    kept = POLICIES[policy](terms)
    per_step = np.bincount(kept.step, kept.weight, minlength=len(sequences)).astype(np.float64)
    return replace(kept, step_weight=per_step[kept.step])


def _advantages(
    sequences: Sequences, each: NDArray[Any] | None, tokens: NDArray[Any] | None, step: Int64, token: Int64
) -> Float32:
    if each is not None and tokens is not None:
        raise InvalidInput("advantages are given twice", field="token_advantages")
    if each is None and tokens is None:
        return np.full(len(step), np.nan, dtype=np.float32)
    field, values, index, n = (
        ("advantages", each, step, len(sequences))
        if tokens is None
        else ("token_advantages", tokens, token, int(sequences.n_response.sum()))
    )
    array = np.asarray(values, dtype=np.float32)
    if array.shape != (n,):
        raise InvalidInput(f"{array.shape} {field} where {n} are needed", field=field)
    return array[index]


def occurrence_sum(terms: LossTerms) -> LossTerms:
    """Keep all terms: for every loss, exactly the loss of the separate sequences."""
    return terms


def train_once(terms: LossTerms) -> LossTerms:
    """Keep only the terms of each packed token's first owner, as prime-rl does."""
    first, _ = _first_of_each(terms.target_pos)
    return terms.take(first)


def fraction(terms: LossTerms) -> LossTerms:
    """One term per packed token, weighted by its occurrences, with the mean advantage and old log-prob.

    The weighting of Tree Training (arXiv 2511.00413). Equal to ``occurrence_sum`` for losses that are linear in the
    log-prob and for token normalisation; an approximation where the loss clips. The first owner is the step.
    """
    first, group = _first_of_each(terms.target_pos)
    weight = np.bincount(group, terms.weight, minlength=len(first)).astype(np.float64)

    def mean(values: Float32) -> Float32:
        total = np.bincount(group, values * terms.weight, minlength=len(first))
        return (total / weight).astype(np.float32)

    merged = replace(terms.take(first), weight=weight)
    return replace(merged, advantage=mean(terms.advantage), old_logp=mean(terms.old_logp))


def _first_of_each(keys: Int64) -> tuple[Int64, Int64]:
    """Indices of the first occurrence of each key, ascending, and for each element the number of its key."""
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return first[order], rank[inverse]


Policy = Callable[[LossTerms], LossTerms]
POLICIES: dict[str, Policy] = {"occurrence_sum": occurrence_sum, "train_once": train_once, "fraction": fraction}


def denominators(rows: Sequence[LossTerms]) -> Denominators:
    """Totals over all rows of a batch, computed before it is split into micro-batches or over ranks."""
    weight = sum(float(terms.weight.sum()) for terms in rows)
    return Denominators(weight, sum(len(np.unique(terms.step)) for terms in rows))


def coefficients(terms: LossTerms, totals: Denominators, normalise: str = "token") -> Float64:
    """The factor of each term in the batch's loss: float64 [M].

    Args:
        terms: of one row.
        totals: of the whole batch.
        normalise: ``token``, the mean over all sampled tokens; ``step``, the mean over steps of the step's own mean;
            ``sum``, no division.

    Raises:
        InvalidInput: an unknown normalisation.
    """
    if normalise not in NORMALISATIONS:
        raise InvalidInput(
            f"no normalisation {normalise!r}", field="normalise", hint=f"one of {', '.join(NORMALISATIONS)}"
        )
    return NORMALISATIONS[normalise](terms, totals)


NORMALISATIONS: dict[str, Callable[[LossTerms, Denominators], Float64]] = {
    "token": lambda terms, totals: terms.weight / totals.weight,
    "step": lambda terms, totals: terms.weight / (terms.step_weight * totals.n_steps),
    "sum": lambda terms, totals: terms.weight,
}
