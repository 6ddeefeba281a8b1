"""Reference losses over the loss terms of packed rows, equal to the same loss over separate sequences.

A loss is a function of the terms' log-probs that gives one value per term; ``batch_loss`` multiplies by the terms'
coefficients and sums. The sum over all rows of a batch is the batch's loss, however it is split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.errors import InvalidInput
from core.tree.terms import Denominators, LossTerms, coefficients


@dataclass(frozen=True, slots=True)
class Clip:
    """Ratios are clipped to ``[1 - low, 1 + high]``."""

    low: float = 0.2
    high: float = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The input of a loss: torch tensors of one row.

    Attributes:
        logp: [M], differentiable.
        old_logp, advantage, weight, step_weight: [M], constants.
        step: int64 [M].
        n_steps: more than any step.
        clip: bounds of the ratio.
    """

    logp: Any
    old_logp: Any
    advantage: Any
    weight: Any
    step_weight: Any
    step: Any
    n_steps: int
    clip: Clip


@dataclass(frozen=True, slots=True)
class Loss:
    """One loss: its value per term, and the terms' fields that it needs."""

    per_term: Callable[[Inputs], Any]
    needs_advantage: bool = True
    needs_old_logp: bool = True


def _sft(x: Inputs) -> Any:
    """-log π(token)."""
    return -x.logp


def _policy_gradient(x: Inputs) -> Any:
    """-A log π(token) (REINFORCE, Williams 1992)."""
    return -x.advantage * x.logp


def _clipped(x: Inputs, ratio: Any) -> Any:
    held = ratio.clamp(1 - x.clip.low, 1 + x.clip.high)
    return -(ratio * x.advantage).minimum(held * x.advantage)


def _ppo_clip(x: Inputs) -> Any:
    """-min(r A, clip(r) A), r = π / μ of the token (Schulman et al., arXiv 1707.06347)."""
    return _clipped(x, (x.logp - x.old_logp).exp())


def _gspo(x: Inputs) -> Any:
    """PPO's clip with one ratio per step, the geometric mean of its tokens' (GSPO, arXiv 2507.18071, eq. 5 and 7).

    Every term of a step has the step's value; normalised by ``step`` the batch's loss is GSPO's mean over sequences.
    """
    share = (x.logp - x.old_logp) * (x.weight / x.step_weight)
    mean = x.logp.new_zeros(x.n_steps).index_add(0, x.step, share)
    return _clipped(x, mean.exp()[x.step])


def _cispo(x: Inputs) -> Any:
    """-sg(clip(r)) A log π: the ratio weighs but isn't differentiated (CISPO, MiniMax-M1, arXiv 2506.13585, eq. 4)."""
    held = (x.logp - x.old_logp).exp().clamp(1 - x.clip.low, 1 + x.clip.high).detach()
    return -held * x.advantage * x.logp


LOSSES: dict[str, Loss] = {
    "sft": Loss(_sft, needs_advantage=False, needs_old_logp=False),
    "policy_gradient": Loss(_policy_gradient, needs_old_logp=False),
    "ppo_clip": Loss(_ppo_clip),
    "gspo": Loss(_gspo),
    "cispo": Loss(_cispo),
}


def batch_loss(
    name: str, logp: Any, terms: LossTerms, totals: Denominators, *, normalise: str = "token", clip: Clip | None = None
) -> Any:
    """One row's share of the batch's loss, a scalar tensor.

    Args:
        name: in ``LOSSES``.
        logp: [M], of ``core.tree.scores``.
        terms: of the row, same order.
        totals: of the whole batch.
        normalise: see ``core.tree.terms.coefficients``.
        clip: bounds for the losses with a ratio.

    Raises:
        InvalidInput: an unknown loss, or terms without a field that it needs.
    """
    import torch

    if name not in LOSSES:
        raise InvalidInput(f"no loss {name!r}", field="loss", hint=f"one of {', '.join(LOSSES)}")
    loss = LOSSES[name]
    for field, needed in (("advantage", loss.needs_advantage), ("old_logp", loss.needs_old_logp)):
        unknown = int(np.isnan(getattr(terms, field)).sum()) if needed else 0
        if unknown:
            raise InvalidInput(f"{name} needs {field}; {unknown} of {len(terms)} terms have none", field=field)

    def tensor(values: Any) -> Any:
        return torch.from_numpy(np.ascontiguousarray(values)).to(logp)

    inputs = Inputs(
        logp=logp,
        old_logp=tensor(terms.old_logp),
        advantage=tensor(terms.advantage),
        weight=tensor(terms.weight),
        step_weight=tensor(terms.step_weight),
        step=torch.from_numpy(terms.step).to(logp.device),
        n_steps=int(terms.step.max()) + 1 if len(terms) else 0,
        clip=clip or Clip(),
    )
    return (loss.per_term(inputs) * tensor(coefficients(terms, totals, normalise))).sum()
