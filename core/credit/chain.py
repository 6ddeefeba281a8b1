"""Arithmetic along the steps or sampled tokens of each trajectory: step rewards, discounted sums, whitening."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.credit.types import Bools, CreditInput, Floats, Ints


def segments(owner: Ints, n: int) -> tuple[Ints, Ints]:
    """Start and number of rows of each of n owners: int64 [n], int64 [n]. ``owner`` is sorted."""
    lengths = np.bincount(owner, minlength=n).astype(np.int64)
    starts: Ints = np.cumsum(lengths) - lengths
    return starts, lengths


@dataclass(frozen=True, slots=True, eq=False)
class UnitChain:
    """The predecessor of each unit (step or sampled token): a chain, or a tree if a trajectory forks.

    If a state's continuation was sampled several times, its value is the mean over its continuations. So sums run over
    the mean of a unit's successors. In a chain that is the next unit.

    Reason: if a unit has k sampled continuations, each one's return is an unbiased estimate of the future return, and
    so is their mean. Returns and GAE are linear in rewards and values, so the result is the average over all paths from
    the unit to an end, each computed as a chain, with weight Π 1/k over the path's forks. Weights by the number of ends
    would favour branches that were sampled more often later.

    The outcome reward is placed at each branch's end. With this placement, every unit's return is R if there is no
    discount and no step reward, as in a chain and as in estimators of whole trajectories. A branch that was not
    continued gets R too: the trajectory was scored as a whole, and the branch's own score is unknown. Step rewards
    are placed on their steps, and count on their own paths only.

    Attributes:
        starts, lengths: int64 [n], units of each trajectory.
        before: int64 [k], the predecessor of each unit, -1 for none; None: the unit before it.
    """

    starts: Ints
    lengths: Ints
    before: Ints | None = None

    def has_successor(self, k: int) -> Bools:
        """Whether each of k units has a successor: bool [k]."""
        result = np.zeros(k, dtype=np.bool_)
        if self.before is not None:
            result[self.before[self.before >= 0]] = True
            return result
        result[:] = True
        result[(self.starts + self.lengths - 1)[self.lengths > 0]] = False
        return result

    def next(self, values: Floats) -> Floats:
        """Mean of the values of each unit's successors, 0 without any: float64 as ``values``."""
        if self.before is None:
            return next_values(values, self.starts, self.lengths)
        on = np.flatnonzero(self.before >= 0)
        n = np.bincount(self.before[on], minlength=len(values))
        total = np.bincount(self.before[on], weights=values[on], minlength=len(values))
        result: Floats = total / np.maximum(n, 1)
        return result

    def discounted(self, values: Floats, factor: float) -> Floats:
        """y_i = x_i + factor · mean of y over the successors of i: float64 as ``values``."""
        if self.before is None:
            return discounted(values, self.starts, self.lengths, factor)
        result = np.array(values, dtype=np.float64)
        n = np.maximum(np.bincount(self.before[self.before >= 0], minlength=len(values)), 1)
        depth = depths(self.before)
        order = np.argsort(depth, kind="stable")
        borders = np.cumsum(np.bincount(depth)) if len(depth) else np.zeros(0, dtype=np.int64)
        for low, high in zip(borders[-2::-1], borders[:0:-1], strict=True):
            at = order[low:high]
            owner = self.before[at]
            np.add.at(result, owner, factor * result[at] / n[owner])
        return result


def depths(before: Ints) -> Ints:
    """Number of predecessors of each unit up to its root: int64 [k], 0 at a root. Computed by pointer doubling."""
    result = (before >= 0).astype(np.int64)
    jump = before.copy()
    while (on := np.flatnonzero(jump >= 0)).size:
        result[on] += result[jump[on]]
        jump[on] = jump[jump[on]]
    return result


def step_flow(batch: CreditInput) -> UnitChain:
    """The flow of each trajectory's steps."""
    starts, lengths = segments(batch.step_trajectory, len(batch.reward))
    return UnitChain(starts, lengths, None if is_chain(batch) else batch.before)


def token_flow(batch: CreditInput) -> UnitChain:
    """The chain of sampled tokens: a step's first token follows the last token of the step's predecessor."""
    starts, lengths, last = token_segments(batch)
    if is_chain(batch):
        return UnitChain(starts, lengths)
    assert batch.before is not None, "else it is a chain"
    n_tokens, origin = batch.n_tokens, batch.before.copy()
    while (empty := np.flatnonzero((origin >= 0) & (n_tokens[origin] == 0))).size:
        origin[empty] = batch.before[origin[empty]]
    before = np.arange(int(n_tokens.sum()), dtype=np.int64) - 1
    some = n_tokens > 0
    before[(last - n_tokens + 1)[some]] = np.where(origin >= 0, last[origin], -1)[some]
    return UnitChain(starts, lengths, before)


def is_chain(batch: CreditInput) -> bool:
    """Whether every step's predecessor is the step before it, in all trajectories."""
    if batch.before is None:
        return True
    starts, lengths = segments(batch.step_trajectory, len(batch.reward))
    plain = np.arange(len(batch.before), dtype=np.int64) - 1
    plain[starts[lengths > 0]] = -1
    return bool((batch.before == plain).all())


def step_rewards(batch: CreditInput) -> Floats:
    """Reward of each step, float64 [s]. In a chain they add up to R, less the rewards of steps outside the batch.

    A step has its recorded reward, or 0. R minus the rewards of all steps of the trajectory is the outcome reward. It
    is added to the last step; in a trajectory that forks, to the last step of each branch.
    """
    rewards = np.where(np.isnan(batch.step_reward), 0.0, batch.step_reward)
    step_sums = np.bincount(batch.step_trajectory, weights=rewards, minlength=len(batch.reward))
    total = step_sums if batch.steps_reward is None else batch.steps_reward
    ends = ~step_flow(batch).has_successor(len(rewards))
    rewards[ends] += (batch.reward - total)[batch.step_trajectory[ends]]
    return rewards


def discounted(values: Floats, starts: Ints, lengths: Ints, factor: float) -> Floats:
    """y_i = x_i + factor · y_{i+1} within each segment: float64 as ``values``.

    All segments are processed together from their ends, so the loop has as many iterations as the longest segment.
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


def next_values(values: Floats, starts: Ints, lengths: Ints) -> Floats:
    """The next value within each segment, 0 after its last: float64 as ``values``."""
    result = np.zeros(len(values))
    result[:-1] = values[1:]
    filled = lengths > 0
    result[(starts + lengths - 1)[filled]] = 0.0
    return result


def token_segments(batch: CreditInput) -> tuple[Ints, Ints, Ints]:
    """Sampled tokens of each trajectory chained across its steps, and the position of each step's last token.

    Returns:
        starts int64 [n], lengths int64 [n], last int64 [s] (for a step without tokens, the position before its start).
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
        weights: int64 [k], number of tokens with each value; None means one each.
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
