"""Running over the steps, or the sampled tokens, of each trajectory: rewards per step, discounted sums, whitening."""

from __future__ import annotations

import numpy as np

from core.credit.types import CreditInput, Floats, Ints


def segments(owner: Ints, n: int) -> tuple[Ints, Ints]:
    """Where each of n owners' rows start and how many there are: int64 [n], int64 [n]. Owners rise."""
    lengths = np.bincount(owner, minlength=n).astype(np.int64)
    starts: Ints = np.cumsum(lengths) - lengths
    return starts, lengths


def step_rewards(batch: CreditInput) -> Floats:
    """float64 [s] that adds up to R per trajectory.

    A step's own reward where it has one. The rest of R is outcome: it came with the end, and stands on the last step.
    """
    own = np.where(np.isnan(batch.step_reward), 0.0, batch.step_reward)
    starts, lengths = segments(batch.step_trajectory, len(batch.reward))
    total = np.bincount(batch.step_trajectory, weights=own, minlength=len(batch.reward))
    filled = lengths > 0
    own[(starts + lengths - 1)[filled]] += (batch.reward - total)[filled]
    return own


def discounted(values: Floats, starts: Ints, lengths: Ints, factor: float) -> Floats:
    """y_i = x_i + factor · y_{i+1} within each segment: float64 as ``values``.

    Segments are worked on side by side from their ends, longest first, so the loop is as long as the longest.
    """
    result = np.array(values, dtype=np.float64)
    order = np.argsort(-lengths, kind="stable")
    ends, sizes = (starts + lengths)[order], lengths[order]
    carry = np.zeros(len(order))
    for back in range(int(sizes[0]) if len(sizes) else 0):
        active = int(np.searchsorted(-sizes, -back, side="left"))
        at = ends[:active] - 1 - back
        carry[:active] = values[at] + factor * carry[:active]
        result[at] = carry[:active]
    return result


def following(values: Floats, starts: Ints, lengths: Ints) -> Floats:
    """The next value within each segment, 0 after its last: float64 as ``values``."""
    result = np.zeros(len(values))
    result[:-1] = values[1:]
    filled = lengths > 0
    result[(starts + lengths - 1)[filled]] = 0.0
    return result


def token_segments(batch: CreditInput) -> tuple[Ints, Ints, Ints]:
    """Sampled tokens of each trajectory chained across its steps, and the position of each step's last token.

    Returns:
        starts int64 [n], lengths int64 [n], last int64 [s] (one before the step's start where it has none).
    """
    n_tokens = batch.n_tokens
    ends = np.cumsum(n_tokens)
    lengths = np.bincount(batch.step_trajectory, weights=n_tokens, minlength=len(batch.reward)).astype(np.int64)
    starts: Ints = np.cumsum(lengths) - lengths
    return starts, lengths, ends - 1


def token_rewards(batch: CreditInput) -> Floats:
    """Each step's reward on its last response token: float64 [t]."""
    _, _, last = token_segments(batch)
    rewards = np.zeros(int(batch.n_tokens.sum()))
    has = batch.n_tokens > 0
    rewards[last[has]] = step_rewards(batch)[has]
    return rewards


def whiten_steps(values: Floats, eps: float = 1e-8) -> Floats:
    """(x − mean) / (std + eps), ddof 1 (Agent-R1, StepPO); fewer than two values give 0."""
    if len(values) < 2:
        return np.zeros(len(values))
    result: Floats = (values - values.mean()) / (values.std(ddof=1) + eps)
    return result


def whiten_tokens(values: Floats, weights: Ints | None = None, eps: float = 1e-8) -> Floats:
    """(x − mean) / √(var + eps), ddof 1: verl's masked whitening.

    Args:
        values: float64 [k].
        weights: int64 [k], tokens that share each value; None is one each.
        eps: added to the variance.
    """
    w = np.ones(len(values)) if weights is None else weights.astype(np.float64)
    total = float(w.sum())
    if total < 2:
        return np.zeros(len(values))
    mean = float((values * w).sum()) / total
    variance = float(((values - mean) ** 2 * w).sum()) / (total - 1)
    result: Floats = (values - mean) / np.sqrt(variance + eps)
    return result
