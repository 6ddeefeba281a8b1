"""The rewards that each source gave a trajectory, as SQL: the input of reward policies.

A source is an annotation's (verifier, judge, human, service, ...), ``complete`` (the reward given at completion) or
``steps`` (the sum of the steps' known rewards). Each source has a first and a last reward, and their places in the
order of all rewards: ``steps`` before ``complete`` before annotations. A source that withdrew its last reward has no
row.
"""

from __future__ import annotations

from core.pool.state.sharedsql import UNDONE

_UNDONE = f"""
undone_actions AS (
    {UNDONE}
)
"""
_SOURCE_REWARDS = """
{undone}, annotated AS (
    SELECT trajectory_id, source,
        arg_min(value_number, annotation_id) FILTER (value_number IS NOT NULL) AS first_reward,
        min(annotation_id) FILTER (value_number IS NOT NULL) AS first_place,
        arg_max_null(value_number, annotation_id) AS last_reward, max(annotation_id) AS last_place
    FROM annotations
    WHERE kind = 'reward' AND step_id IS NULL AND action_id NOT IN (FROM undone_actions) {within}
    GROUP BY trajectory_id, source
), source_rewards AS (
    SELECT trajectory_id, source, first_reward, first_place, last_reward, last_place FROM annotated
    WHERE last_reward IS NOT NULL
    UNION ALL
    SELECT trajectory_id, 'complete', arg_min(reward, event_id), 0, arg_max(reward, event_id), 0
    FROM trajectory_events WHERE reward IS NOT NULL {within} GROUP BY trajectory_id
    UNION ALL
    SELECT trajectory_id, 'steps', sum(reward ORDER BY step_id), -1, sum(reward ORDER BY step_id), -1
    FROM step_state WHERE reward IS NOT NULL {within} GROUP BY trajectory_id
)
"""
_IN_SCOPE = "AND trajectory_id IN (SELECT trajectory_id FROM scope)"

SOURCE_REWARDS = _SOURCE_REWARDS.format(undone=_UNDONE, within="")
"""Common table expressions. ``source_rewards``, the last, has a row per trajectory and source: its first and last
reward and their places."""
SOURCE_REWARDS_IN_SCOPE = _SOURCE_REWARDS.format(undone=_UNDONE, within=_IN_SCOPE)
"""The same for the trajectories in the table ``scope``."""

NEWEST_REWARD = f"""
{SOURCE_REWARDS_IN_SCOPE}, newest AS (
    SELECT trajectory_id, arg_max_null(value_number, annotation_id) AS reward FROM annotations
    WHERE kind = 'reward' AND step_id IS NULL AND action_id NOT IN (FROM undone_actions) {_IN_SCOPE}
    GROUP BY trajectory_id
), by_policy AS (
    SELECT scope.trajectory_id, coalesce(newest.reward, complete.last_reward, steps.last_reward) AS reward
    FROM scope LEFT JOIN newest USING (trajectory_id)
    LEFT JOIN (FROM source_rewards WHERE source = 'complete') complete USING (trajectory_id)
    LEFT JOIN (FROM source_rewards WHERE source = 'steps') steps USING (trajectory_id)
)
"""
"""``by_policy`` where no policy is adopted: the rule of ``core.pool.state.derive``."""
