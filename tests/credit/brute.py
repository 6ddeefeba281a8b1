"""Every estimator again, by loops over Python lists, from the papers' formulas: the judge of core.credit."""

from __future__ import annotations

import math
import statistics
from difflib import SequenceMatcher

from .batches import Groups


def everyone(groups: Groups):
    return [t for group in groups for t in group]


def whiten(values, weights=None):
    expanded = [v for v, w in zip(values, weights or [1] * len(values), strict=True) for _ in range(w)]
    if len(expanded) < 2:
        return [0.0] * len(values)
    mean, var = statistics.fmean(expanded), statistics.variance(expanded)
    return [(v - mean) / math.sqrt(var + 1e-8) for v in values]


def counts(groups):
    return [len(s.token_values) for t in everyone(groups) for s in t.steps]


def returns(rewards, factor):
    return [sum(factor ** (j - k) * rewards[j] for j in range(k, len(rewards))) for k in range(len(rewards))]


def children(before):
    """What goes on from each step: ``before[k]`` is the step that k goes on from, None for none."""
    return [[j for j, b in enumerate(before) if b == k] for k in range(len(before))]


def tree_returns(rewards, before, factor):
    """Each step's reward and the mean over what goes on from it, recursively."""
    after = children(before)

    def value(k):
        return rewards[k] + (factor * statistics.fmean(value(j) for j in after[k]) if after[k] else 0.0)

    return [value(k) for k in range(len(rewards))]


def tree_gae(rewards, values, before, gamma, lam):
    after = children(before)
    ahead = [statistics.fmean(values[j] for j in after[k]) if after[k] else 0.0 for k in range(len(values))]
    return tree_returns([r + gamma * v - values[k] for k, (r, v) in enumerate(zip(rewards, ahead, strict=True))],
                        before, gamma * lam)  # fmt: skip


def leaf_rewards(own, total, earned, before):
    """Own rewards, and on the end of each branch what of the total no step earned."""
    return [r + (total - earned if not after else 0.0) for r, after in zip(own, children(before), strict=True)]


def tree_of_tokens(counts, before):
    """What each token goes on from, where each step has so many."""
    starts = [sum(counts[:k]) for k in range(len(counts))]
    parents = []
    for k, n in enumerate(counts):
        parents.append(None if before[k] is None else starts[before[k]] + counts[before[k]] - 1)
        parents += range(starts[k], starts[k] + n - 1)
    return parents


def gae(rewards, values, gamma, lam):
    deltas = [r + gamma * (values[k + 1] if k + 1 < len(values) else 0) - values[k] for k, r in enumerate(rewards)]
    return returns(deltas, gamma * lam)


def step_gae(groups, gamma=1.0, lam=1.0):
    flat = [a for t in everyone(groups) for a in gae(t.rewards, [s.value for s in t.steps], gamma, lam)]
    if len(flat) < 2:
        return [0.0] * len(flat)
    mean, std = statistics.fmean(flat), statistics.stdev(flat)
    return [(a - mean) / (std + 1e-8) for a in flat]


def token_rewards(t):
    return [x for s, r in zip(t.steps, t.rewards, strict=True) for x in [0.0] * (len(s.token_values) - 1) + [r]]


def token_gae(groups, gamma=1.0, lam=1.0):
    flat = []
    for t in everyone(groups):
        values = [v for s in t.steps for v in s.token_values]
        flat += gae(token_rewards(t), values, gamma, lam)
    return whiten(flat)


def reinforce_plus_plus(groups, gamma=1.0, chain="trajectory"):
    """Per token."""
    flat = []
    for t in everyone(groups):
        if chain == "trajectory":
            flat += returns(token_rewards(t), gamma)
        else:
            for s, r in zip(t.steps, t.rewards, strict=True):
                flat += returns([0.0] * (len(s.token_values) - 1) + [r], gamma)
    return whiten(flat)


def reinforce_plus_plus_baseline(groups):
    centred, weights = [], []
    for group in groups:
        mean = statistics.fmean(t.total for t in group)
        for t in group:
            centred.append(t.total - mean)
            weights.append(sum(len(s.token_values) for s in t.steps))
    values = whiten(centred, weights)
    return [v for v, t in zip(values, everyone(groups), strict=True) for _ in t.steps]


def remax(groups):
    return [g - t.baseline for t in everyone(groups) for g in returns(t.rewards, 1.0)]


def relative(members, mode, ddof=1):
    if len(members) == 1:
        return [0.0]
    mean = statistics.fmean(members)
    spread = (statistics.stdev if ddof else statistics.pstdev)(members)
    return [(m - mean) / (1 if mode == "mean_norm" else spread + 1e-6) for m in members]


def gigpo(groups, gamma=0.95, w=1.0, mode="mean_std_norm", similarity=None):
    result = []
    for group in groups:
        episode = relative([t.total for t in group], mode)
        rows = [
            (i, g, s.anchor)
            for i, t in enumerate(group)
            for g, s in zip(returns(t.rewards, gamma), t.steps, strict=True)
        ]
        clusters: list[tuple[str, list[int]]] = []
        for k, (_, _, anchor) in enumerate(rows):
            for first, members in clusters:
                equal = (
                    anchor == first
                    if similarity is None
                    else (SequenceMatcher(None, anchor, first).ratio() >= similarity)
                )
                if equal:
                    members.append(k)
                    break
            else:
                clusters.append((anchor, [k]))
        step = [0.0] * len(rows)
        for _, members in clusters:
            for k, value in zip(members, relative([rows[k][1] for k in members], mode), strict=True):
                step[k] = value
        result += [episode[i] + w * step[k] for k, (i, _, _) in enumerate(rows)]
    return result


def turn_discount(groups, discount=1.0, baseline="group_mean"):
    result = []
    for group in groups:
        per = [returns(t.rewards, discount) for t in group]
        mean = statistics.fmean(statistics.fmean(g) for g in per)
        var = statistics.fmean(statistics.fmean((x - mean) ** 2 for x in g) for g in per)
        for g in per:
            if baseline == "none":
                result += g
            else:
                scale = math.sqrt(var) + 1e-6 if baseline == "group_norm" else 1
                result += [(x - mean) / scale for x in g]
    return result


def distill(groups, coef=1.0):
    return [
        coef * (b - a) for t in everyone(groups) for s in t.steps for a, b in zip(s.logprobs, s.teacher, strict=True)
    ]


def dpo_all(groups, margin=0.0):
    """Set of (chosen, rejected) trajectory numbers."""
    pairs, base = set(), 0
    for group in groups:
        for i, a in enumerate(group):
            pairs |= {(base + i, base + j) for j, b in enumerate(group) if a.total - b.total > margin}
        base += len(group)
    return pairs
