"""GiGPO: compares trajectories within their group, and steps with other steps in the same state.

A = A_episode + w·A_step. A_episode is GRPO's. G_k = Σ γ^(j−k) r_j; steps of one prompt group with the same anchor
observation (equal, or similar to the first) form a step group, in which G is normalised. A single step has A_step = 0.
(arXiv 2505.10978; StepPO's names and defaults, ``mean_norm`` is DrMAS's.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from core.credit.base import (
    EPS,
    SINGLETON,
    Estimator,
    Option,
    always,
    centre,
    group_size_needs,
    normalised,
    raw_singletons,
)
from core.credit.chain import step_flow, step_rewards
from core.credit.grpo import DDOF
from core.credit.types import Credit, CreditInput, Floats, Ints, Needs


def needs(settings: Mapping[str, Any]) -> Needs:
    """At least two trajectories per group, and an anchor per step."""
    group = group_size_needs(settings)
    source = "anchor" if settings["anchor"] == "metadata" else "observation"
    return Needs(rewards=True, min_group_size=group.min_group_size, exact_tokens=True, fields=(source,), chained=True)


def compute(settings: Mapping[str, Any], batch: CreditInput) -> Credit:
    """The sum of episode-level and step-level advantages."""
    assert batch.anchor is not None, "checked by needs"

    def relative(values: Floats, owner: Ints, n: int) -> Floats:
        if settings["mode"] == "mean_norm":
            return centre(values, owner, n)[0]
        return normalised(values, owner, n, ddof=settings["ddof"], eps=settings["eps"])

    n_groups = len(batch.prompt_uids)
    sizes = np.bincount(batch.group, minlength=n_groups).astype(np.int64)
    episode = raw_singletons(settings, batch, sizes, relative(batch.reward, batch.group, n_groups))
    returns = step_flow(batch).discounted(step_rewards(batch), settings["gamma"])
    owner = step_groups(batch.group[batch.step_trajectory], batch.anchor, settings["similarity"])
    step = relative(returns, owner, int(owner.max()) + 1 if len(owner) else 0)
    total = episode[batch.step_trajectory] + settings["w"] * step
    return Credit(step=total, trajectory=None, step_return=returns)


def step_groups(group: Ints, anchors: Sequence[str | None], similarity: float | None) -> Ints:
    """Number of each step's step group: int64 [s], from 0 in order of first appearance.

    Args:
        group: int64 [s], prompt group of each step.
        anchors: [s].
        similarity: None: anchors must be equal. Otherwise an anchor joins the first group whose first member has at
            least this similarity (``difflib`` ratio).
    """
    numbers: dict[tuple[int, str | None], int] = {}
    first_members: dict[int, list[tuple[str, int]]] = {}
    result = np.zeros(len(group), dtype=np.int64)
    n_groups = 0
    for i, key in enumerate(zip(group.tolist(), anchors, strict=True)):
        member_of = numbers.get(key)
        if member_of is None:
            members = first_members.setdefault(key[0], [])
            text = key[1] or ""
            if similarity is not None:
                member_of = next((number for other, number in members if _similar(text, other, similarity)), None)
            if member_of is None:
                member_of, n_groups = n_groups, n_groups + 1
                members.append((text, member_of))
            numbers[key] = member_of
        result[i] = member_of
    return result


def _similar(a: str, b: str, least: float) -> bool:
    matcher = SequenceMatcher(None, a, b)
    # The quick ratios are upper bounds; they avoid most computations of the slow one.
    return matcher.real_quick_ratio() >= least and matcher.quick_ratio() >= least and matcher.ratio() >= least


ESTIMATOR = Estimator(
    name="gigpo",
    title="GiGPO",
    formula="A = A_episode + w·A_step; A_step = normalised discounted return among steps of the same state",
    needs=needs,
    options={
        "gamma": Option(0.95, "Discount per step of the returns G (0.95, GiGPO)", minimum=0, maximum=1),
        "w": Option(1.0, "Weight of the step advantage (1.0, StepPO)", minimum=0),
        "mode": Option(
            "mean_std_norm",
            "mean_std_norm: over mean and std (StepPO, default); mean_norm: over the mean alone (DrMAS)",
            choices=("mean_std_norm", "mean_norm"),
        ),
        "anchor": Option(
            "metadata",
            "metadata: the producer's metadata.anchor (default); observation: the newest message of the prompt",
            choices=("metadata", "observation"),
        ),
        "similarity": Option(
            None,
            "Minimum similarity of an anchor to its step group's first member; none: must be equal (default, StepPO;"
            " its value if on is 0.95)",
            minimum=0,
            maximum=1,
            optional=True,
        ),
        "ddof": DDOF,
        "eps": Option(EPS, "Added to the std (1e-6, StepPO)", minimum=0),
        "singleton": SINGLETON,
    },
    compute=compute,
    within_group=always,
)
