"""Why a trajectory has the reward that it has: who gave it, with which components and reason, and what it overrides.

Verifiers and judges report their reasons in the metadata of the completion (``POST trajectories/{uid}/complete``) or in
the note of a reward annotation: ``verifier`` (a name), ``reward_components`` (name -> number), ``reward_reason`` (a
text) and ``reward_details`` (anything).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.pool.state.findings import names_of
from core.pool.state.sharedsql import UNDONE
from core.pool.store.content import decode
from core.pool.store.database import Cursor, rows


@dataclass(frozen=True, slots=True)
class GivenReward:
    """One reward that somebody gave the trajectory.

    Attributes:
        source: ``verifier``, ``human``, ``studio`` and so on of an annotation; ``complete``: given at completion;
            ``steps``: the sum of the steps' rewards.
        value: the reward; None withdraws an earlier annotation.
        author: who gave it, None where unknown.
        reason: the text that came with it, or None.
        at: UTC, a naive datetime; None for ``steps``.
        in_effect: whether the trajectory's reward is this one.
    """

    source: str
    value: float | None
    author: str | None = None
    reason: str | None = None
    at: Any = None
    in_effect: bool = False


@dataclass(frozen=True, slots=True)
class RewardReason:
    """Why a trajectory has its reward.

    Attributes:
        reward: the effective reward, None when unscored.
        policy: ``name v2`` of the channel's reward policy when one is adopted.
        given: all rewards that were given and not undone, newest first.
        verifier: name of the verifier that reported at completion.
        components: name -> number, as the verifier reported them.
        details: what else it reported.
        outcome: how the attempt ended.
        findings: findings of automatic checks, on the trajectory or one of its steps.
    """

    reward: float | None
    policy: str | None
    given: Sequence[GivenReward]
    verifier: str | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    outcome: str | None = None
    findings: Sequence[str] = ()

    @property
    def in_effect(self) -> GivenReward | None:
        """The reward that counts; None when unscored, or computed by a policy from several."""
        return next((one for one in self.given if one.in_effect), None)

    @property
    def overridden(self) -> GivenReward | None:
        """The captured reward (at completion, or of the steps) that another one overrides."""
        captured = next((one for one in self.given if one.source in CAPTURED), None)
        return None if captured is None or captured.in_effect else captured


CAPTURED = ("complete", "steps")
"""Sources of rewards that came with the data; annotations override them."""

_ANNOTATED = f"""
SELECT t.trajectory_uid, a.value_number, a.author, a.source, a.note, a.created_at
FROM annotations a JOIN trajectories t USING (trajectory_id)
WHERE a.kind = 'reward' AND a.step_id IS NULL AND a.action_id NOT IN ({UNDONE})
    AND t.trajectory_uid IN (SELECT unnest(?::VARCHAR[]))
ORDER BY a.annotation_id DESC
"""
_COMPLETED = """
SELECT t.trajectory_uid, e.reward, e.agent, e.metadata, e.created_at
FROM trajectory_events e JOIN trajectories t USING (trajectory_id)
WHERE e.kind = 'complete' AND t.trajectory_uid IN (SELECT unnest(?::VARCHAR[])) ORDER BY e.event_id DESC
"""
_STATE = """
SELECT t.trajectory_uid, t.reward, t.outcome, t.channel, t.finding_bits | t.step_finding_bits AS bits,
    (SELECT sum(s.reward) FROM step_state s WHERE s.trajectory_id = t.trajectory_id) AS of_steps
FROM trajectory_state t WHERE t.trajectory_uid IN (SELECT unnest(?::VARCHAR[]))
"""


def explain_rewards(
    cursor: Cursor, trajectory_uids: Sequence[str], adopted: Mapping[str, Mapping[str, Any]]
) -> dict[str, RewardReason]:
    """The reasons of these trajectories' rewards, by uid; those that do not exist are left out.

    Args:
        adopted: channel -> its reward policy (``pool.rewards.all_adopted``).
    """
    bound = [list(trajectory_uids)]
    annotated, completed = (_by_uid(rows(cursor, sql, bound)) for sql in (_ANNOTATED, _COMPLETED))
    return {
        row["trajectory_uid"]: _explain(
            row,
            annotated.get(row["trajectory_uid"], []),
            completed.get(row["trajectory_uid"], []),
            adopted.get(row["channel"]),
        )
        for row in rows(cursor, _STATE, bound)
    }


def _by_uid(found: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    by_uid: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        by_uid.setdefault(row["trajectory_uid"], []).append(row)
    return by_uid


def _explain(
    state: Mapping[str, Any],
    annotated: Sequence[Mapping[str, Any]],
    completed: Sequence[Mapping[str, Any]],
    policy: Mapping[str, Any] | None,
) -> RewardReason:
    reported = next((decode(row["metadata"]) for row in completed if row["metadata"] is not None), None) or {}
    given = [
        GivenReward(row["source"], row["value_number"], row["author"], row["note"], row["created_at"])
        for row in annotated
    ]
    scored = next((row for row in completed if row["reward"] is not None), None)
    if scored is not None:
        text = reported.get("reward_reason")
        reason = None if text is None else str(text)
        given.append(GivenReward("complete", scored["reward"], scored["agent"], reason, scored["created_at"]))
    if state["of_steps"] is not None:
        given.append(GivenReward("steps", state["of_steps"]))
    components = reported.get("reward_components")
    details = reported.get("reward_details")
    return RewardReason(
        reward=state["reward"],
        policy=None if policy is None else f"{policy['name']} v{policy['version']}",
        given=_marked(given, None if policy is not None else _newest(annotated, given)),
        verifier=None if reported.get("verifier") is None else str(reported["verifier"]),
        components={
            str(name): float(value)
            for name, value in (components.items() if isinstance(components, Mapping) else ())
            if isinstance(value, int | float) and not isinstance(value, bool)
        },
        details=details if isinstance(details, Mapping) else {},
        outcome=state["outcome"],
        findings=names_of(state["bits"]),
    )


def _newest(annotated: Sequence[Mapping[str, Any]], given: Sequence[GivenReward]) -> int | None:
    """The place of the reward that counts where no policy is adopted: ``core.pool.state.rewardsources``."""
    if annotated and annotated[0]["value_number"] is not None:
        return 0
    return next((place for place, one in enumerate(given) if one.source in CAPTURED and one.value is not None), None)


def _marked(given: Sequence[GivenReward], place: int | None) -> list[GivenReward]:
    return [
        GivenReward(one.source, one.value, one.author, one.reason, one.at, in_effect=number == place)
        for number, one in enumerate(given)
    ]
