"""Computes log-probs and entropies of loss terms from hidden states, without T × vocabulary logits in memory.

Only positions that predict a loss term are computed, each once for all its owners. The vocabulary is processed in
slices with a running log-sum-exp, in the forward and in the backward pass. The largest array is ``rows × slice``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput
from core.tree.sequences import Int64
from core.tree.terms import LossTerms

ROWS = 2048
SLICE = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Log-probs and entropies of M loss terms, as differentiable torch tensors.

    Attributes:
        logp: [M], log-prob of each target, nats.
        entropy: [M], entropy of the distribution at its position (temperature 1), nats.
    """

    logp: Any
    entropy: Any


def token_scores(model: Any, hidden: Any, terms: LossTerms, *, rows: int = ROWS, vocabulary: int = SLICE) -> Scores:
    """Scores of a row's loss terms.

    Args:
        model: a transformers causal LM; its output embeddings are the head.
        hidden: [T, hidden], last hidden states of the packed row.
        terms: the row's loss terms.
        rows, vocabulary: maximum number of positions and of vocabulary tokens in one matrix product.

    Raises:
        InvalidInput: the model's head is not a single linear map.
    """
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, name, None) is not None:
            raise InvalidInput(f"the model's {name} is not supported", field=name, hint="use scores_from_logits")
    head = model.get_output_embeddings()
    return scores_from_hidden(hidden, head.weight, getattr(head, "bias", None), terms, rows=rows, vocabulary=vocabulary)


def scores_from_hidden(
    hidden: Any, weight: Any, bias: Any, terms: LossTerms, *, rows: int = ROWS, vocabulary: int = SLICE
) -> Scores:
    """``token_scores`` for a linear head ``weight`` [V, hidden], ``bias`` [V] or None."""
    import torch
    from torch.nn.functional import embedding

    position, which = np.unique(terms.packed_pos, return_inverse=True)
    inverse = torch.from_numpy(which).to(hidden.device)
    target = torch.from_numpy(terms.target.astype(np.int64)).to(hidden.device)
    states = hidden.index_select(0, torch.from_numpy(position).to(hidden.device))
    lse, entropy = _function().apply(states, weight, bias, rows, vocabulary)
    wide = lse.dtype
    logit = (states.index_select(0, inverse).to(wide) * embedding(target, weight).to(wide)).sum(-1)
    if bias is not None:
        logit = logit + bias[target].to(wide)
    return Scores(logit - lse[inverse], entropy[inverse])


def scores_from_logits(logits: Any, terms: LossTerms, *, rows: int = ROWS) -> Scores:
    """Scores from existing logits [T, V]; the softmax is computed for ``rows`` positions at a time."""
    import torch
    from torch.utils.checkpoint import checkpoint

    position = torch.from_numpy(terms.packed_pos).to(logits.device)
    target = torch.from_numpy(terms.target.astype(np.int64)).to(logits.device)

    def some(start: int) -> tuple[Any, Any]:
        chosen = logits.index_select(0, position[start : start + rows])
        logp = torch.log_softmax(chosen.to(torch.promote_types(chosen.dtype, torch.float32)), dim=-1)
        of_target = logp.gather(1, target[start : start + rows, None])[:, 0]
        return of_target, -(logp.exp() * logp).sum(-1)

    parts = [checkpoint(some, start, use_reentrant=False) for start in range(0, len(terms), rows)]
    if not parts:
        return Scores(logits.new_zeros(0), logits.new_zeros(0))
    return Scores(*(torch.cat(list(column)) for column in zip(*parts, strict=True)))


def by_step(terms: LossTerms, values: NDArray[Any]) -> dict[int, NDArray[Any]]:
    """Split values [M] of loss terms by step: step index -> its values in the order of its response."""
    if len(terms) == 0:
        return {}
    borders: Int64 = np.flatnonzero(np.diff(terms.step)) + 1
    firsts = terms.step[np.concatenate([[0], borders])].tolist()
    return dict(zip(firsts, np.split(values, borders), strict=True))


@cache
def _function() -> Any:
    """The autograd function, created at first use, so that torch is not imported before."""
    import torch

    def slices(n: int, size: int) -> list[slice]:
        return [slice(start, min(start + size, n)) for start in range(0, n, size)]

    class HeadStatistics(torch.autograd.Function):  # type: ignore[misc]
        """Log-sum-exp and entropy over the vocabulary: [U, hidden] -> [U], [U]."""

        @staticmethod
        def logits(states: Any, weight: Any, bias: Any, columns: slice) -> Any:
            made = states @ weight[columns].T
            wide = made.to(torch.promote_types(made.dtype, torch.float32))
            return wide if bias is None else wide + bias[columns]

        @staticmethod
        def forward(ctx: Any, states: Any, weight: Any, bias: Any, rows: int, vocabulary: int) -> tuple[Any, Any]:
            wide = torch.promote_types(states.dtype, torch.float32)
            lse, entropy = (torch.empty(len(states), dtype=wide, device=states.device) for _ in range(2))
            for some in slices(len(states), rows):
                n = some.stop - some.start
                top = torch.full((n,), -torch.inf, dtype=wide, device=states.device)
                total, dot = torch.zeros_like(top), torch.zeros_like(top)  # Σ e^(z - top), Σ e^(z - top) z
                for columns in slices(len(weight), vocabulary):
                    z = HeadStatistics.logits(states[some], weight, bias, columns)
                    higher = torch.maximum(top, z.amax(-1))
                    shrink = (top - higher).exp()
                    mass = (z - higher[:, None]).exp_()
                    total = total * shrink + mass.sum(-1)
                    dot = dot * shrink + mass.mul_(z).sum(-1)
                    top = higher
                lse[some] = top + total.log()
                entropy[some] = lse[some] - dot / total
            ctx.save_for_backward(states, weight, bias, lse, entropy)
            ctx.sizes = rows, vocabulary
            return lse, entropy

        @staticmethod
        def backward(ctx: Any, grad_lse: Any, grad_entropy: Any) -> tuple[Any, ...]:
            """dlse/dz = p and dH/dz = -p (z - lse + H); the logits are recomputed slice by slice."""
            states, weight, bias, lse, entropy = ctx.saved_tensors
            rows, vocabulary = ctx.sizes
            flat = not grad_entropy.any()
            grad_states = torch.zeros_like(states, dtype=lse.dtype)
            grad_weight = torch.zeros_like(weight, dtype=lse.dtype)
            grad_bias = None if bias is None else torch.zeros_like(bias, dtype=lse.dtype)
            for some in slices(len(states), rows):
                for columns in slices(len(weight), vocabulary):
                    z = HeadStatistics.logits(states[some], weight, bias, columns).sub_(lse[some, None])
                    factor = grad_lse[some, None]
                    if not flat:
                        factor = factor - grad_entropy[some, None] * (z + entropy[some, None])
                    g = z.exp_() * factor
                    narrow = g.to(states.dtype)
                    grad_states[some] += narrow @ weight[columns]
                    grad_weight[columns] += narrow.T @ states[some]
                    if grad_bias is not None:
                        grad_bias[columns] += g.sum(0)
            return (
                grad_states.to(states.dtype),
                grad_weight.to(weight.dtype),
                None if bias is None or grad_bias is None else grad_bias.to(bias.dtype),
                None,
                None,
            )

    return HeadStatistics
