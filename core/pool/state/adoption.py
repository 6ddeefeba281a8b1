"""Effective rewards by the reward policy that a channel has adopted, for stored and for later rewards."""

from __future__ import annotations

from typing import Any

from core.pool.state.rewardrules import rule_sql
from core.pool.state.rewardsources import NEWEST_REWARD, SOURCE_REWARDS_IN_SCOPE
from core.pool.state.workspace import Workspace
from core.pool.store.content import decode
from core.pool.store.database import Cursor, rows
from core.rewards.policy import parse_policy

# By the order of the rows, which are only appended: the clock may have been set back in between.
_ADOPTED = """
SELECT a.channel, a.name, a.version, p.policy, a.author, a.adopted_at FROM (
    FROM adopted_reward_policies
    QUALIFY row_number() OVER (PARTITION BY channel ORDER BY rowid DESC) = 1
) a JOIN reward_policies p ON p.name = a.name AND p.version = a.version
ORDER BY a.channel
"""
_SET = """
UPDATE trajectory_state t SET reward = p.reward FROM by_scope p
WHERE t.trajectory_id = p.trajectory_id AND t.reward IS DISTINCT FROM p.reward
"""


def adopted(cursor: Cursor) -> list[dict[str, Any]]:
    """Policies in force: ``{channel, name, version, policy, author, adopted_at}`` by channel."""
    return [{**row, "policy": decode(row["policy"])} for row in rows(cursor, _ADOPTED)]


def apply_adopted(work: Workspace) -> None:
    """Set the rewards of the trajectories in ``scope`` by adopted policies; other columns are not changed."""
    for row in adopted(work.cursor):
        rule, parameters = rule_sql(parse_policy(row["policy"]))
        work.fill(
            "by_scope",
            f"WITH {SOURCE_REWARDS_IN_SCOPE}, by_policy AS ("
            f" SELECT trajectory_id, {rule} AS reward FROM source_rewards GROUP BY trajectory_id"
            ") SELECT t.trajectory_id, p.reward FROM (FROM trajectory_state SEMI JOIN scope USING (trajectory_id)) t"
            " LEFT JOIN by_policy p USING (trajectory_id) WHERE t.channel = $channel",
            {**parameters, "channel": row["channel"]},
        )
        work.cursor.execute(_SET)


def set_newest_rewards(work: Workspace) -> None:
    """The rewards of the trajectories in ``scope`` as they are where nothing is adopted."""
    work.fill("by_scope", f"WITH {NEWEST_REWARD} SELECT * FROM by_policy")
    work.cursor.execute(_SET)
