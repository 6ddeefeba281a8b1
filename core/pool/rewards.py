"""``pool.rewards``: append-only versions of reward policies, the preview of one, and its adoption by a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from core.errors import InvalidInput, NotFound
from core.pool.query.rewardreason import RewardReason, explain_rewards
from core.pool.state.adoption import adopted, set_newest_rewards
from core.pool.state.derive import derive_group_state
from core.pool.state.rewardrules import rule_sql
from core.pool.state.rewardsources import SOURCE_REWARDS
from core.pool.state.workspace import Workspace
from core.pool.store.changes import NO_CHANGES
from core.pool.store.content import canonical, decode
from core.pool.store.database import Cursor, Database, arrow, rows, seconds, timestamp
from core.rewards.policy import RewardPolicy, parse_policy

Spec = str | Sequence[str] | Mapping[str, Any] | RewardPolicy
"""A policy's name (``name`` or ``name@version``), a list of sources in precedence, or a policy itself."""


_PREVIEW = """
WITH {source_rewards}, by_policy AS (
    SELECT trajectory_id, {rule} AS reward FROM source_rewards GROUP BY trajectory_id
), compared AS (
    SELECT t.trajectory_uid, t.prompt_uid, t.n_steps, t.reward AS before, p.reward AS after
    FROM trajectory_state t LEFT JOIN by_policy p USING (trajectory_id)
    WHERE t.channel = $channel AND t.n_steps > 0
)
"""
_COUNTS = """
SELECT count(*) AS n_trajectories, coalesce(sum(n_steps), 0)::BIGINT AS n_steps,
    count(DISTINCT prompt_uid) AS n_groups,
    count(*) FILTER (before IS DISTINCT FROM after) AS n_trajectories_changed,
    coalesce(sum(n_steps) FILTER (before IS DISTINCT FROM after), 0)::BIGINT AS n_steps_changed,
    count(DISTINCT prompt_uid) FILTER (before IS DISTINCT FROM after) AS n_groups_changed,
    count(*) FILTER (before IS NULL AND after IS NOT NULL) AS n_newly_scored,
    count(*) FILTER (before IS NOT NULL AND after IS NULL) AS n_no_longer_scored,
    count(before) AS n_scored_before, count(after) AS n_scored_after,
    avg(before) AS mean_before, avg(after) AS mean_after,
    least(min(before), min(after)) AS low, greatest(max(before), max(after)) AS high
FROM compared
"""
_GROUPS = """
SELECT count(*) FILTER (flat_before AND NOT flat_after) AS n_no_longer_flat,
    count(*) FILTER (flat_after AND NOT flat_before) AS n_newly_flat
FROM (
    SELECT prompt_uid, count(before) >= 2 AND min(before) = max(before) AS flat_before,
        count(after) >= 2 AND min(after) = max(after) AS flat_after
    FROM compared GROUP BY prompt_uid
)
"""
_HISTOGRAM = """
SELECT bin, count(*) FILTER (side = 'before')::BIGINT AS n_before, count(*) FILTER (side = 'after')::BIGINT AS n_after
FROM (
    SELECT side, least(floor((reward - $low) / $width * $bins), $bins - 1)::INTEGER AS bin
    FROM (SELECT 'before' AS side, before AS reward FROM compared UNION ALL SELECT 'after', after FROM compared)
    WHERE reward IS NOT NULL
) GROUP BY bin ORDER BY bin
"""


class RewardPolicies:
    """``pool.rewards``: named reward policies, and their adoption by channels.

    A version is ``{name, version, policy, author, created_at}``.
    """

    def __init__(self, database: Database) -> None:
        self._db = database

    def save(self, name: str, policy: Mapping[str, Any], *, author: str = "api") -> int:
        """Add a version unless the newest one is equal; returns the newest version's number, from 1."""
        name = name.strip()
        if not name or "@" in name:
            raise InvalidInput("A name without @ is needed.", field="name")
        body = canonical(parse_policy(policy).to_json()).decode("utf-8")
        with self._db.write(NO_CHANGES) as cursor:
            newest = cursor.execute(
                "SELECT version, policy FROM reward_policies WHERE name = ? ORDER BY version DESC", [name]
            ).fetchall()
            if newest and newest[0][1] == body:
                return int(newest[0][0])
            version = 1 if not newest else int(newest[0][0]) + 1
            cursor.execute(
                "INSERT INTO reward_policies VALUES (?, ?, ?, ?, ?)",
                [name, version, body, author, timestamp(self._db.clock())],
            )
        return version

    def all(self) -> list[dict[str, Any]]:
        """All versions, by name, newest first."""
        with self._db.read() as cursor:
            return [_public(row) for row in rows(cursor, "SELECT * FROM reward_policies ORDER BY name, version DESC")]

    def resolve(self, spec: Spec) -> dict[str, Any]:
        """A policy as self-contained JSON: a name is replaced by its rule, with ``name`` and ``version``.

        NotFound when there is no policy of this name, InvalidInput for one that does not fit.
        """
        with self._db.read() as cursor:
            return _resolved(cursor, spec)

    def by_policy(self, policy: Spec, *, channel: str) -> pa.Table:
        """Rewards by any policy: (trajectory_uid, reward) of the trajectories that it scores."""
        with self._db.read() as cursor:
            rule, parameters = rule_sql(parse_policy(_resolved(cursor, policy)))
            return arrow(
                cursor,
                f"WITH {SOURCE_REWARDS}, by_policy AS ("
                f" SELECT trajectory_id, {rule} AS reward FROM source_rewards GROUP BY trajectory_id)"
                " SELECT t.trajectory_uid, p.reward FROM by_policy p JOIN trajectory_state t USING (trajectory_id)"
                " WHERE t.channel = $channel AND p.reward IS NOT NULL",
                {**parameters, "channel": channel},
            )

    def sources(self, *, channel: str) -> list[dict[str, Any]]:
        """Reward sources with their numbers of trajectories: ``{source, n_trajectories, mean}``, most first."""
        with self._db.read() as cursor:
            return rows(
                cursor,
                f"WITH {SOURCE_REWARDS} SELECT r.source, count(*) AS n_trajectories, avg(r.last_reward) AS mean"
                " FROM source_rewards r JOIN trajectory_state t USING (trajectory_id) WHERE t.channel = ?"
                " GROUP BY r.source ORDER BY n_trajectories DESC, r.source",
                [channel],
            )

    def preview(self, policy: Spec, *, channel: str, bins: int = 20, limit: int = 50) -> dict[str, Any]:
        """What would change if this policy decided instead of the rewards in effect now.

        Returns:
            ``counts`` (trajectories, steps, groups and how many of each change, newly and no longer scored, means
            before and after, groups that turn flat or not), ``histogram`` (``{low, high, n_before, n_after}`` of
            trajectory rewards in equal bins), ``changes`` (the ``limit`` greatest: ``{trajectory_uid, prompt_uid,
            before, after}``).
        """
        if not 1 <= bins <= 1000:
            raise InvalidInput("bins is from 1 to 1000.", field="bins")
        with self._db.read() as cursor:
            resolved = _resolved(cursor, policy)
            rule, parameters = rule_sql(parse_policy(resolved))
            bound = {**parameters, "channel": channel}
            base = _PREVIEW.format(source_rewards=SOURCE_REWARDS, rule=rule)
            counts = rows(cursor, base + _COUNTS, bound)[0]
            counts |= rows(cursor, base + _GROUPS, bound)[0]
            low, high = counts.pop("low"), counts.pop("high")
            histogram: list[dict[str, Any]] = []
            if low is not None:
                width = (high - low) or 1.0
                bin_rows = rows(cursor, base + _HISTOGRAM, {**bound, "low": low, "width": width, "bins": bins})
                by_bin = {row["bin"]: row for row in bin_rows}
                for i in range(bins):
                    row = by_bin.get(i, {"n_before": 0, "n_after": 0})
                    edges = {"low": low + width * i / bins, "high": low + width * (i + 1) / bins}
                    histogram.append({**edges, "n_before": row["n_before"], "n_after": row["n_after"]})
            changes = rows(
                cursor,
                base + "SELECT trajectory_uid, prompt_uid, before, after FROM compared"
                " WHERE before IS DISTINCT FROM after"
                " ORDER BY abs(after - before) DESC NULLS LAST, trajectory_uid LIMIT $limit",
                {**bound, "limit": limit},
            )
        return {"policy": resolved, "channel": channel, "counts": counts, "histogram": histogram, "changes": changes}

    def adopt(
        self, channel: str, name: str | None, version: int | None = None, *, author: str = "api"
    ) -> dict[str, Any] | None:
        """Let a policy decide the channel's trajectory rewards from now on; without a name, the newest reward again.

        Without a version it is the newest at this time, and stays that. What is stored of words never changes, so
        adopting another policy brings back whatever it makes of them. NotFound when there is no such policy.
        """
        if name is None and version is not None:
            raise InvalidInput("A version needs a name.", field="name")
        with self._db.write() as cursor:
            if name is not None:
                newest = cursor.execute(
                    "SELECT max(version) FROM reward_policies WHERE name = $name"
                    " AND ($version::INTEGER IS NULL OR version = $version)",
                    {"name": name, "version": version},
                ).fetchall()
                if newest[0][0] is None:
                    raise NotFound(
                        f"No reward policy {name!r}.", field="name", hint="GET /api/v1/rewards lists what there is."
                    )
                version = int(newest[0][0])
            cursor.execute(
                "INSERT INTO adopted_reward_policies VALUES (?, ?, ?, ?, ?)",
                [channel, name, version, author, timestamp(self._db.clock())],
            )
            work = Workspace(cursor)
            work.scope_to_channel(channel)
            if name is None:
                set_newest_rewards(work)
            work.groups_of_scope()
            work.live_in_scope()
            work.trajectory_opinions()
            derive_group_state(work)
        return self.adopted(channel)

    def reasons(self, trajectory_uids: Sequence[str]) -> dict[str, RewardReason]:
        """Why these trajectories have their rewards, by uid: who gave them, with which components and reason."""
        policies = self.all_adopted()
        with self._db.read() as cursor:
            return explain_rewards(cursor, trajectory_uids, policies)

    def adopted(self, channel: str) -> dict[str, Any] | None:
        """``{channel, name, version, policy, author, adopted_at}``, or None: the newest reward counts."""
        return self.all_adopted().get(channel)

    def all_adopted(self) -> dict[str, dict[str, Any]]:
        """Channel -> the policy that it has adopted."""
        with self._db.read() as cursor:
            return {row["channel"]: {**row, "adopted_at": seconds(row["adopted_at"])} for row in adopted(cursor)}


def _resolved(cursor: Cursor, spec: Spec) -> dict[str, Any]:
    if isinstance(spec, RewardPolicy):
        return spec.to_json()
    if not isinstance(spec, str):
        named = {key: spec[key] for key in ("name", "version") if key in spec} if isinstance(spec, Mapping) else {}
        return {**parse_policy(spec).to_json(), **named}
    name, _, version = spec.partition("@")
    if version and not version.isdecimal():
        raise InvalidInput(f"{version!r} is no version of a reward policy.", field="rewards")
    versions = rows(
        cursor,
        "SELECT * FROM reward_policies WHERE name = $name AND ($version::INTEGER IS NULL OR version = $version)"
        " ORDER BY version DESC LIMIT 1",
        {"name": name, "version": int(version) if version else None},
    )
    if not versions:
        raise NotFound(f"No reward policy {spec!r}.", field="rewards", hint="GET /api/v1/rewards lists them.")
    return {**decode(versions[0]["policy"]), "name": name, "version": versions[0]["version"]}


def _public(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "policy": decode(row["policy"]), "created_at": seconds(row["created_at"])}
