"""Named reward policies: versions that are only ever added, what one would change, and which one a recipe means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from core.errors import InvalidInput, NotFound
from core.pool.changes import NOTHING
from core.pool.content import canonical, decode
from core.pool.database import Cursor, Database, arrow, rows, seconds, timestamp
from core.pool.said import SAID
from core.rewards.policy import RewardPolicy, parse_policy

Spec = str | Sequence[str] | Mapping[str, Any] | RewardPolicy
"""A policy's name (``name`` or ``name@version``), a list of sources in precedence, or a policy itself."""


def rule_sql(policy: RewardPolicy) -> tuple[str, dict[str, Any]]:
    """The reward as an aggregate over ``said`` grouped by trajectory, with its parameters; NULL: unscored."""
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


_PREVIEW = """
WITH {said}, by_policy AS (
    SELECT trajectory_id, {rule} AS reward FROM said GROUP BY trajectory_id
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


class RewardBook:
    """The part of ``Pool`` that keeps reward policies. A version is ``{name, version, policy, author, created_at}``."""

    _db: Database

    def save_reward_policy(self, name: str, policy: Mapping[str, Any], *, author: str = "api") -> int:
        """Add a version unless the newest one is equal; returns the newest version's number, from 1."""
        name = name.strip()
        if not name or "@" in name:
            raise InvalidInput("A name without @ is needed.", field="name")
        body = canonical(parse_policy(policy).to_json()).decode("utf-8")
        with self._db.write(NOTHING) as cursor:
            found = cursor.execute(
                "SELECT version, policy FROM reward_policies WHERE name = ? ORDER BY version DESC", [name]
            ).fetchall()
            if found and found[0][1] == body:
                return int(found[0][0])
            version = 1 if not found else int(found[0][0]) + 1
            cursor.execute(
                "INSERT INTO reward_policies VALUES (?, ?, ?, ?, ?)",
                [name, version, body, author, timestamp(self._db.clock())],
            )
        return version

    def reward_policies(self) -> list[dict[str, Any]]:
        """All versions, by name, newest first."""
        with self._db.read() as cursor:
            return [_public(row) for row in rows(cursor, "SELECT * FROM reward_policies ORDER BY name, version DESC")]

    def resolved_policy(self, spec: Spec) -> dict[str, Any]:
        """A policy as JSON that means the same for good: a name becomes its rule, with ``name`` and ``version``.

        NotFound when there is no policy of this name, InvalidInput for one that does not fit.
        """
        with self._db.read() as cursor:
            return _resolved(cursor, spec)

    def trajectory_rewards(self, policy: Spec, *, channel: str) -> pa.Table:
        """Rewards by a policy instead of by the newest word: (trajectory_uid, reward) of the scored trajectories."""
        with self._db.read() as cursor:
            rule, parameters = rule_sql(parse_policy(_resolved(cursor, policy)))
            return arrow(
                cursor,
                f"WITH {SAID}, by_policy AS (SELECT trajectory_id, {rule} AS reward FROM said GROUP BY trajectory_id)"
                " SELECT t.trajectory_uid, p.reward FROM by_policy p JOIN trajectory_state t USING (trajectory_id)"
                " WHERE t.channel = $channel AND p.reward IS NOT NULL",
                {**parameters, "channel": channel},
            )

    def version_rewards(self, name: str, policy: Spec) -> pa.Table:
        """The same by what each source had said when a dataset version was frozen."""
        with self._db.read() as cursor:
            rule, parameters = rule_sql(parse_policy(_resolved(cursor, policy)))
            return arrow(
                cursor,
                f"WITH by_policy AS (SELECT trajectory_id, {rule} AS reward FROM dataset_rewards"
                " WHERE version_id IN (SELECT version_id FROM dataset_versions WHERE $version IN (version_uid, name))"
                " GROUP BY trajectory_id)"
                " SELECT t.trajectory_uid, p.reward FROM by_policy p JOIN trajectories t USING (trajectory_id)"
                " WHERE p.reward IS NOT NULL",
                {**parameters, "version": name},
            )

    def reward_sources(self, *, channel: str) -> list[dict[str, Any]]:
        """Who has spoken of how many trajectories: ``{source, n_trajectories, mean}``, most first."""
        with self._db.read() as cursor:
            return rows(
                cursor,
                f"WITH {SAID} SELECT said.source, count(*) AS n_trajectories, avg(last_reward) AS mean FROM said"
                " JOIN trajectory_state t USING (trajectory_id) WHERE t.channel = ?"
                " GROUP BY said.source ORDER BY n_trajectories DESC, said.source",
                [channel],
            )

    def preview_rewards(self, policy: Spec, *, channel: str, bins: int = 20, limit: int = 50) -> dict[str, Any]:
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
            base = _PREVIEW.format(said=SAID, rule=rule)
            counts = rows(cursor, base + _COUNTS, bound)[0]
            counts |= rows(cursor, base + _GROUPS, bound)[0]
            low, high = counts.pop("low"), counts.pop("high")
            histogram: list[dict[str, Any]] = []
            if low is not None:
                width = (high - low) or 1.0
                told = rows(cursor, base + _HISTOGRAM, {**bound, "low": low, "width": width, "bins": bins})
                by_bin = {row["bin"]: row for row in told}
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


def _resolved(cursor: Cursor, spec: Spec) -> dict[str, Any]:
    if isinstance(spec, RewardPolicy):
        return spec.to_json()
    if not isinstance(spec, str):
        named = {key: spec[key] for key in ("name", "version") if key in spec} if isinstance(spec, Mapping) else {}
        return {**parse_policy(spec).to_json(), **named}
    name, _, version = spec.partition("@")
    if version and not version.isdecimal():
        raise InvalidInput(f"{version!r} is no version of a reward policy.", field="rewards")
    found = rows(
        cursor,
        "SELECT * FROM reward_policies WHERE name = $name AND ($version::INTEGER IS NULL OR version = $version)"
        " ORDER BY version DESC LIMIT 1",
        {"name": name, "version": int(version) if version else None},
    )
    if not found:
        raise NotFound(f"No reward policy {spec!r}.", field="rewards", hint="GET /api/v1/rewards lists them.")
    return {**decode(found[0]["policy"]), "name": name, "version": found[0]["version"]}


def _public(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "policy": decode(row["policy"]), "created_at": seconds(row["created_at"])}
