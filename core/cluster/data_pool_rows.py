"""What Claw-R1's dashboard asks of its ``data_pool`` actor: counts, steps, trajectories, events and labels.

Rows have the fields of Claw-R1's pool. Its ``correct`` and ``incorrect`` are the studio's ``good`` and ``bad``, its
``missing`` is ``unsure``; ``reward_status`` is kept as a tag. ``storage_index`` and ``cursor`` are numbers of steps in
the order of their arrival.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from core.client import StudioClient

QUALITY = {"good": "correct", "bad": "incorrect", "unsure": "missing", None: "unreviewed"}
"""The studio's label -> Claw-R1's."""
LABELS = {"correct": "good", "good": "good", "incorrect": "bad", "bad": "bad", "missing": "unsure"}
"""Claw-R1's label -> the studio's; any other withdraws the label."""
STATUS = "reward_status:"
# Claw-R1 keeps a reward that is given with the completion on the last step.
REWARD = "coalesce(reward, CASE WHEN is_last THEN trajectory_reward END)"
SHOWN = f"""CASE quality WHEN 'good' THEN 'correct' WHEN 'bad' THEN 'incorrect' WHEN 'unsure' THEN 'missing'
  ELSE CASE WHEN {REWARD} IS NULL THEN 'missing' WHEN {REWARD} > 0 THEN 'correct' ELSE 'incorrect' END END"""
STEP = f"""step_id, step_uid, trajectory_uid, prompt_uid, step_index, is_last, complete, {REWARD} AS reward,
  coalesce(policy_version, 0) AS policy_version, n_prompt_tokens, n_response_tokens, agent, metadata,
  quality, trainable, tags"""
MOST = 10_000
N_SHOWN = 12
NAMED = 300
"""Trajectories that one query names: its text is limited."""


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


class Rows:
    """Reads and labels steps over HTTP.

    Args:
        client: of the studio.
        since: steps captured before are not counted or listed (seconds since the epoch); None: all are.
    """

    def __init__(self, client: StudioClient, since: float | None) -> None:
        self._client = client
        self._since = None if since is None else f"TIMESTAMP '{datetime.fromtimestamp(since, UTC):%F %T.%f}'"

    def counts(self, channel: str, n_rollouts: int) -> dict[str, int]:
        """``n_steps, n_trajectories, n_complete, n_groups, n_ready, n_curated, cursor`` of a channel.

        ``n_ready``: groups with at least ``n_rollouts`` complete trajectories, given to a trainer or not.
        """
        (of_groups,) = self._sql(
            "SELECT coalesce(sum(n), 0)::BIGINT AS n_trajectories, coalesce(sum(done), 0)::BIGINT AS n_complete,"
            f" count(*) AS n_groups, count(*) FILTER (done >= {int(n_rollouts)}) AS n_ready FROM"
            " (SELECT prompt_uid, count(*) AS n, count(*) FILTER (complete) AS done FROM trajectories"
            f" WHERE {self._in(channel, 'started_at')} GROUP BY prompt_uid)"
        )
        (of_steps,) = self._sql(
            "SELECT count(*) AS n_steps, coalesce(max(step_id), 0) AS cursor, count(*) FILTER"
            " (quality IS NOT NULL OR len(tags) > 0 OR n_notes > 0) AS n_curated"
            f" FROM steps WHERE {self._in(channel)}"
        )
        return {**of_groups, **of_steps}

    def registered(self, trajectory_uids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """By trajectory uid: the metadata that were registered."""
        known: dict[str, dict[str, Any]] = {}
        for at in range(0, len(trajectory_uids), NAMED):
            named = ", ".join(map(quoted, trajectory_uids[at : at + NAMED]))
            rows = self._sql(f"SELECT trajectory_uid, metadata FROM trajectories WHERE trajectory_uid IN ({named})")
            known |= {row["trajectory_uid"]: json.loads(row["metadata"] or "{}") for row in rows}
        return known

    def steps(
        self,
        channel: str,
        *,
        prompt_uid: str | None = None,
        trajectory_uid: str | None = None,
        agent: str | None = None,
        quality: str | None = None,
        trainable: bool | None = None,
        reward_state: str | None = None,
        min_reward: float | None = None,
        max_reward: float | None = None,
        policy_version: int | None = None,
        limit: int = 200,
        offset: int = 0,
    ) -> dict[str, Any]:
        """A page of steps with token ids and labels, by prompt group, trajectory and index."""
        conditions = [self._in(channel)]
        equal = {"prompt_uid": prompt_uid, "trajectory_uid": trajectory_uid, "agent": agent, f"({SHOWN})": quality}
        conditions += [f"{name} = {quoted(value)}" for name, value in equal.items() if value]
        if trainable is not None:
            conditions.append(f"trainable = {bool(trainable)}")
        if reward_state:
            conditions.append(f"({REWARD} IS NULL) = {reward_state == 'missing'}")
        if policy_version is not None:
            conditions.append(f"coalesce(policy_version, 0) = {int(policy_version)}")
        if min_reward is not None:
            conditions.append(f"{REWARD} >= {float(min_reward)}")
        if max_reward is not None:
            conditions.append(f"{REWARD} <= {float(max_reward)}")
        where = " AND ".join(conditions)
        (total,) = self._sql(f"SELECT count(*) AS n FROM steps WHERE {where}")
        rows = self._sql(
            f"SELECT {STEP} FROM steps WHERE {where} ORDER BY prompt_uid, trajectory_uid, step_index, step_id"
            f" LIMIT {max(0, int(limit))} OFFSET {max(0, int(offset))}"
        )
        tokens: dict[str, dict[str, Any]] = {}
        for uid in dict.fromkeys(row["trajectory_uid"] for row in rows):
            whole = self._client.call("GET", f"/api/v1/trajectories/{uid}", repeat=True)
            tokens |= {step["step_uid"]: {**step, "registered": whole["metadata"]} for step in whole["steps"]}
        return {
            "channel": channel,
            "total": total["n"],
            "steps": [_step(row, channel, tokens[row["step_uid"]]) for row in rows],
        }

    def trajectories(
        self,
        channel: str,
        *,
        prompt_uid: str | None = None,
        trajectory_uid: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> dict[str, Any]:
        """A page of trajectories, each summed up from its steps."""
        equal = {"prompt_uid": prompt_uid, "trajectory_uid": trajectory_uid}
        where = " AND ".join(
            [self._in(channel), *(f"{name} = {quoted(value)}" for name, value in equal.items() if value)]
        )
        (total,) = self._sql(f"SELECT count(DISTINCT trajectory_uid) AS n FROM steps WHERE {where}")
        rows = self._sql(
            f"SELECT trajectory_uid, prompt_uid, list({{'reward': {REWARD}, 'version': coalesce(policy_version, 0),"
            " 'agent': agent, 'quality': quality, 'trainable': trainable, 'complete': complete, 'metadata': metadata}"
            f" ORDER BY step_index, step_id) AS steps FROM steps WHERE {where} GROUP BY trajectory_uid, prompt_uid"
            f" ORDER BY prompt_uid, trajectory_uid LIMIT {max(0, int(limit))} OFFSET {max(0, int(offset))}"
        )
        return {"channel": channel, "total": total["n"], "trajectories": [_trajectory(row) for row in rows]}

    def events(self, channel: str, cursor: int, limit: int) -> dict[str, Any]:
        """The steps after a cursor, as events of the type ``step_submitted``."""
        n = max(0, int(limit))
        rows = self._sql(
            f"SELECT {STEP} FROM steps WHERE {self._in(channel)} AND step_id > {int(cursor)}"
            f" ORDER BY step_id LIMIT {n + 1}"
        )
        events = [
            {
                "cursor": row["step_id"],
                "type": "step_submitted",
                "step_key": _key(row),
                **{name: row[name] for name in ("trajectory_uid", "prompt_uid", "step_index", "policy_version")},
                "reward": row["reward"],
                "payload": {"channel": channel, "storage_index": row["step_id"]},
            }
            for row in rows[:n]
        ]
        last = events[-1]["cursor"] if events else cursor
        return {"channel": channel, "cursor": last, "events": events, "has_more": len(rows) > n}

    def curate(self, channel: str, updates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Label the steps that updates name by ``step_key`` or by ``trajectory_uid`` and ``step_index``."""
        steps = {_place(update): self._find(channel, *_place(update)) for update in updates}
        annotations = []
        for update in updates:
            row = steps[_place(update)]
            if row is not None:
                opinions = _opinions(update)
                annotations += [{"target": {"step_uid": row["step_uid"]}, **one} for one in opinions]
        if annotations:
            body = {"annotations": [{**one, "author": "claw-r1", "source": "human"} for one in annotations]}
            self._client.call("POST", "/api/v1/annotations", body)
        updated = []
        for place, row in steps.items():
            if row is not None and (now := self._find(channel, *place)) is not None:
                updated.append({"step_key": _key(now), "curation": _curation(now)})
        return {"channel": channel, "updated": updated, "updated_count": len(updated)}

    def _find(self, channel: str, trajectory_uid: str, step_index: int) -> dict[str, Any] | None:
        rows = self._sql(
            f"SELECT {STEP} FROM steps WHERE {self._in(channel)} AND trajectory_uid = {quoted(trajectory_uid)}"
            f" AND step_index = {step_index} ORDER BY step_id LIMIT 1"
        )
        return rows[0] if rows else None

    def _in(self, channel: str, time: str = "created_at") -> str:
        inside = f"channel = {quoted(channel)}"
        return inside if self._since is None else f"{inside} AND {time} >= {self._since}"

    def _sql(self, text: str) -> list[dict[str, Any]]:
        answer = self._client.call("POST", "/api/v1/sql", {"sql": text, "limit": MOST}, repeat=True)
        names = [column["name"] for column in answer["columns"]]
        return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


def _place(update: Mapping[str, Any]) -> tuple[str, int]:
    if update.get("step_key"):
        trajectory_uid, _, index = str(update["step_key"]).rpartition(":")
        return trajectory_uid, int(index)
    return str(update.get("trajectory_uid")), int(update.get("step_index") or 0)


def _opinions(update: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Kinds and values of the studio's annotations."""
    opinions: list[dict[str, Any]] = []
    if "quality" in update:
        opinions.append({"kind": "quality", "value": LABELS.get(str(update["quality"]))})
    if "trainable" in update:
        opinions.append({"kind": "trainable", "value": update["trainable"]})
    if update.get("reward_status"):
        opinions.append({"kind": "tag", "value": f"{STATUS}{update['reward_status']}"})
    opinions += [{"kind": "tag", "value": tag} for tag in update.get("tags") or ()]
    if update.get("note"):
        opinions.append({"kind": "note", "value": update["note"]})
    return opinions


def _key(row: Mapping[str, Any]) -> str:
    return f"{row['trajectory_uid']}:{row['step_index']}"


def _curation(row: Mapping[str, Any]) -> dict[str, Any]:
    tags = row["tags"] or []
    status = next((tag.removeprefix(STATUS) for tag in reversed(tags) if tag.startswith(STATUS)), None)
    return {
        "quality": QUALITY[row["quality"]],
        "trainable": row["trainable"],
        "reward_status": status or _state(row),
        "tags": [tag for tag in tags if not tag.startswith(STATUS)],
    }


def _state(row: Mapping[str, Any]) -> str:
    return "missing" if row["reward"] is None else "present"


def _step(row: Mapping[str, Any], channel: str, tokens: Mapping[str, Any]) -> dict[str, Any]:
    metadata = tokens["metadata"] if tokens["source"] == "whitebox" else tokens["registered"]
    prompt_ids, response_ids = tokens["prompt_ids"] or [], tokens["response_ids"] or []
    names = ("trajectory_uid", "prompt_uid", "step_index", "is_last", "complete", "reward")
    first = ", ".join(map(str, response_ids[:N_SHOWN]))
    return {
        "step_key": _key(row),
        "storage_index": row["step_id"],
        "channel": channel,
        **{name: row[name] for name in names},
        "reward_state": _state(row),
        "policy_version": row["policy_version"],
        "prompt_len": len(prompt_ids),
        "response_len": len(response_ids),
        "token_count": len(prompt_ids) + len(response_ids),
        "prompt_ids": prompt_ids,
        "response_ids": response_ids,
        "action_summary": f"[{first}{' ...' if len(response_ids) > N_SHOWN else ''}]",
        "agent": row["agent"] or metadata.get("agent"),
        "source": _first(metadata, "source", "data_source", "dataset", "task"),
        "task": _first(metadata, "task", "data_source", "dataset"),
        "metadata": metadata,
        "curation": _curation(row),
    }


def _first(metadata: Mapping[str, Any], *names: str) -> Any:
    return next((metadata[name] for name in names if metadata.get(name)), None)


def _trajectory(row: Mapping[str, Any]) -> dict[str, Any]:
    steps = row["steps"]
    rewards = [step["reward"] for step in steps if step["reward"] is not None]
    return {
        "trajectory_uid": row["trajectory_uid"],
        "prompt_uid": row["prompt_uid"],
        "step_count": len(steps),
        "complete": steps[-1]["complete"],
        "reward_sum": sum(rewards) if rewards else None,
        "reward_min": min(rewards, default=None),
        "reward_max": max(rewards, default=None),
        "policy_versions": sorted({step["version"] for step in steps}),
        "agents": sorted({step["agent"] for step in steps if step["agent"] is not None}),
        "quality_counts": dict(Counter(QUALITY[step["quality"]] for step in steps)),
        "trainable_steps": sum(bool(step["trainable"]) for step in steps),
        "metadata": json.loads(steps[0]["metadata"] or "{}"),
    }
