"""Reward policies: rules that select or combine the rewards of a trajectory from several sources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from core.errors import InvalidInput

Rule = Literal["last", "first", "precedence", "weighted"]
Missing = Literal["skip", "unscored"]
RULES: dict[str, str] = {
    "last": "the newest reward",
    "first": "the oldest reward that is not undone",
    "precedence": "the newest reward of the first listed source that has one",
    "weighted": "the weighted mean of each source's newest reward",
}

COMBINATIONS: Mapping[str, tuple[float, float]] = {
    "code_only": (1.0, 0.0),
    "mean": (0.5, 0.5),
    "code_0.7_rubric_0.3": (0.7, 0.3),
}
"""How a check by code and a rubric are combined: their weights. ClawGym's RL run takes the code only, ClawGym II's
bench 0.7 and 0.3."""


@dataclass(frozen=True)
class RewardPolicy:
    """A rule and the sources that it uses.

    Attributes:
        rule: one of ``RULES``.
        sources: sources of rewards that count: an annotation's source (verifier, judge, human, service, ...),
            ``complete`` (set at completion), ``steps`` (sum of the steps' rewards). Empty means all; precedence and
            weighted need a list.
        weights: source -> weight, for ``weighted``; they are normalised over the sources that have a reward.
        missing: for ``weighted``, if a source has no reward: ``skip`` it, or leave the trajectory ``unscored``.
    """

    rule: Rule
    sources: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    missing: Missing = "skip"

    def to_json(self) -> dict[str, Any]:
        """The policy as JSON; equal policies give equal JSON."""
        if self.rule == "weighted":
            return {"rule": self.rule, "weights": dict(self.weights), "missing": self.missing}
        return {"rule": self.rule, "sources": list(self.sources)}


def parse_policy(data: Mapping[str, Any] | Sequence[str]) -> RewardPolicy:
    """Parse a policy from JSON; a list of sources means precedence in this order.

    Raises:
        InvalidInput: a field is invalid; ``field`` names it.
    """
    if not isinstance(data, Mapping):
        data = {"rule": "precedence", "sources": list(data)}
    known = {"rule", "sources", "weights", "missing", "name", "version"}
    unknown = sorted(set(data) - known)
    if unknown:
        raise InvalidInput(f"A reward policy has no field {unknown[0]!r}.", field=f"policy.{unknown[0]}")
    rule, sources = data.get("rule"), data.get("sources") or []
    weights, missing = data.get("weights") or {}, data.get("missing", "skip")
    if rule not in get_args(Rule):
        raise InvalidInput(
            f"No rule {rule!r}.", field="policy.rule", hint="; ".join(f"{name}: {doc}" for name, doc in RULES.items())
        )
    texts = isinstance(sources, Sequence) and not isinstance(sources, str) and all(
        isinstance(one, str) and one for one in sources
    )  # fmt: skip
    if not texts or len(set(sources)) < len(sources):
        raise InvalidInput("sources is a list of different names.", field="policy.sources")
    if rule == "weighted":
        fits = isinstance(weights, Mapping) and weights and all(
            isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) and one > 0
            for one in weights.values()
        )  # fmt: skip
        if not fits or sources:
            raise InvalidInput("weighted takes weights: {source: number above 0}.", field="policy.weights")
        if missing not in get_args(Missing):
            raise InvalidInput("missing is skip or unscored.", field="policy.missing")
        return RewardPolicy(rule, (), {str(name): float(one) for name, one in sorted(weights.items())}, missing)
    if weights or "missing" in data:
        raise InvalidInput(f"{rule} takes no weights and no missing.", field="policy.weights")
    if rule == "precedence" and not sources:
        raise InvalidInput("precedence takes sources, first one first.", field="policy.sources")
    return RewardPolicy(cast(Rule, rule), tuple(sources))


def combination(
    weights: Mapping[str, float] | tuple[float, float] | str, code: str, rubric: str, missing: Missing = "unscored"
) -> dict[str, Any]:
    """The policy that combines the rewards of two sources, as JSON for ``parse_policy``.

    Args:
        weights: a key of ``COMBINATIONS``, or weights of code and rubric (a task's ``weights`` have these names).
        code, rubric: their sources.
        missing: what a trajectory without one of the two gets: no reward, or with ``skip`` the other one.

    Returns:
        A policy of both sources, or of one if the weight of the other is 0.

    Raises:
        InvalidInput: the combination is unknown, or the weights are not finite, negative, or both 0.
    """
    if isinstance(weights, str):
        if weights not in COMBINATIONS:
            raise InvalidInput(
                f"no combination {weights!r}", field="combination", hint=f"one of {', '.join(COMBINATIONS)}"
            )
        weights = COMBINATIONS[weights]
    one, other = (weights.get("code", 0.0), weights.get("rubric", 0.0)) if isinstance(weights, Mapping) else weights
    if not (math.isfinite(one) and math.isfinite(other) and one >= 0 and other >= 0 and one + other > 0):
        raise InvalidInput(f"the weights are {one} and {other}", field="combination", hint="0 or more, not both 0")
    kept = {source: weight for source, weight in ((code, one), (rubric, other)) if weight > 0}
    if len(kept) == 1:
        return {"rule": "precedence", "sources": list(kept)}
    return {"rule": "weighted", "weights": kept, "missing": missing}
