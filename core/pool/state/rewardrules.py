"""The rule of a reward policy as SQL over the rewards that each source gave (``core.pool.state.rewardsources``)."""

from __future__ import annotations

from typing import Any

from core.rewards.policy import RewardPolicy


def rule_sql(policy: RewardPolicy) -> tuple[str, dict[str, Any]]:
    """The reward as an aggregate over ``source_rewards`` grouped by trajectory, with its parameters; NULL: unscored."""
    if policy.rule == "weighted":
        names, weights = list(policy.weights), list(policy.weights.values())
        weight = "list_extract($weights::DOUBLE[], list_position($names::VARCHAR[], source))"
        heard = "list_contains($names::VARCHAR[], source)"
        mean = f"sum(last_reward * {weight} ORDER BY source) FILTER ({heard})"
        mean = f"{mean} / sum({weight} ORDER BY source) FILTER ({heard})"
        if policy.missing == "unscored":
            mean = f"CASE WHEN count(*) FILTER ({heard}) = len($names::VARCHAR[]) THEN {mean} END"
        return mean, {"names": names, "weights": weights}
    names = list(policy.sources)
    heard = "FILTER (list_contains($names::VARCHAR[], source))" if names else ""
    parameters = {"names": names} if names else {}
    if policy.rule == "precedence":
        return f"arg_min(last_reward, list_position($names::VARCHAR[], source)) {heard}", parameters
    if policy.rule == "first":
        return f"arg_min(first_reward, (first_place, source)) {heard}", parameters
    return f"arg_max(last_reward, (last_place, source)) {heard}", parameters
