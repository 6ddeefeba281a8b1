"""``pool.versions``: immutable dataset versions, which hold their members with the labels of that time, hashed.

A version keeps what can change later (rewards, labels, membership, kinds) and points to what can't (tokens, messages).
So it costs a row per step, and later plans and exports of it use the same values.
"""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cachetools import LRUCache

from core.errors import Conflict, InvalidInput, NotFound
from core.pool.edits import Edit, in_force, of_version
from core.pool.query.members import MemberFilter, member_page, member_summary, member_values, uid_condition
from core.pool.query.planrows import plan_rows
from core.pool.query.viewreader import ViewReader
from core.pool.rewards import RewardPolicies, Spec
from core.pool.state.rewardrules import rule_sql
from core.pool.state.rewardsources import SOURCE_REWARDS
from core.pool.store.bookkeeping import list_policy_events
from core.pool.store.changes import NO_CHANGES
from core.pool.store.content import canonical, decode
from core.pool.store.database import Cursor, Database, arrow, registered, rows, seconds, timestamp
from core.pool.store.tablehash import update_hash
from core.rewards.policy import parse_policy
from core.types import PolicyEvent, View

MASK_COLUMNS = ("mask_starts", "mask_ends", "mask_id")
LABELS = (
    "prompt_uid", "call_kind", "reward", "quality", "trainable", "is_last", "tags", "trajectory_reward",
    "trajectory_quality", "complete", "correct", "trajectory_correct",
)  # fmt: skip
"""The mutable columns of a step that a version stores."""
SHOWN_CHANGES = 1000
MAX_COUNTED = 256
"""Counts of versions' members that are kept in memory: a few numbers each."""

_SNAPSHOT = """
SELECT r.place, r.step_uid, s.step_id, s.trajectory_id, t.trajectory_uid, f.content_hash::VARCHAR AS content_hash,
    s.prompt_uid, s.call_kind, s.reward, s.quality, s.trainable, s.is_last, s.tags,
    t.reward AS trajectory_reward, t.quality AS trajectory_quality, t.complete, s.correct,
    t.correct AS trajectory_correct,
    f.tokenizer_hash, s.source, s.token_source, s.model, s.agent, s.policy_version, s.policy_version_end,
    s.n_prompt_tokens, s.n_response_tokens
FROM wanted_rows r
JOIN step_state s ON s.step_uid = r.step_uid
JOIN trajectory_state t ON t.trajectory_id = s.trajectory_id
JOIN steps f ON f.step_id = s.step_id
ORDER BY r.place
"""

# Log-probs were given with the redacted tokens in sight, so such a step is not exact: ratio-based algorithms leave it.
_ROWS = """
SELECT f.step_id, f.step_uid, t.trajectory_uid, d.prompt_uid, f.step_index, f.n_prompt_tokens, f.n_response_tokens,
    d.reward, d.trajectory_reward, d.quality, d.trajectory_quality, d.trainable, d.complete,
    CASE WHEN d.mask_starts IS NULL THEN f.token_source ELSE 'retokenized' END AS token_source,
    d.call_kind, f.policy_version, d.is_last
FROM dataset_steps d
JOIN steps f ON f.step_id = d.step_id
JOIN trajectories t ON t.trajectory_id = d.trajectory_id
WHERE d.version_id = ? ORDER BY d.place
"""

_HASHED = f"""
SELECT f.step_uid, f.content_hash::VARCHAR AS content_hash, t.trajectory_uid, d.place,
    {", ".join(f"d.{name}" for name in (*LABELS, *MASK_COLUMNS))}
FROM dataset_steps d JOIN steps f ON f.step_id = d.step_id JOIN trajectories t ON t.trajectory_id = d.trajectory_id
WHERE d.version_id = ? ORDER BY d.place
"""
_HASHED_REWARDS = """
SELECT t.trajectory_uid, r.source, r.first_reward, r.last_reward FROM dataset_rewards r
JOIN trajectories t USING (trajectory_id) WHERE r.version_id = ? ORDER BY t.trajectory_uid, r.source
"""
_HASHED_VALUES = """
SELECT f.step_uid, d.model, d.value FROM dataset_values d JOIN steps f USING (step_id)
WHERE d.version_id = ? ORDER BY f.step_uid, d.model
"""

_DIFF = """
WITH a AS (SELECT * FROM dataset_steps WHERE version_id = $a), b AS (SELECT * FROM dataset_steps WHERE version_id = $b)
SELECT f.step_uid, t.trajectory_uid,
    CASE WHEN a.step_id IS NULL THEN 'added' WHEN b.step_id IS NULL THEN 'removed' ELSE 'changed' END AS change,
    f.step_index, f.prompt_uid, coalesce(b.place, a.place) AS place,
    {columns}
FROM a FULL JOIN b ON a.step_id = b.step_id
JOIN steps f ON f.step_id = coalesce(a.step_id, b.step_id)
JOIN trajectories t ON t.trajectory_id = coalesce(a.trajectory_id, b.trajectory_id)
WHERE a.step_id IS NULL OR b.step_id IS NULL OR {differs}
"""
_REWARDS_OF_TWO = """
WITH a AS (
    SELECT trajectory_id, any_value(trajectory_reward) AS reward FROM dataset_steps WHERE version_id = $a GROUP BY ALL
), b AS (
    SELECT trajectory_id, any_value(trajectory_reward) AS reward FROM dataset_steps WHERE version_id = $b GROUP BY ALL
)
SELECT avg(a.reward) AS mean_a, avg(b.reward) AS mean_b, count(a.reward) AS n_a, count(b.reward) AS n_b,
    count(*) FILTER (b.reward > a.reward) AS n_rose, count(*) FILTER (b.reward < a.reward) AS n_fell
FROM a FULL JOIN b ON a.trajectory_id = b.trajectory_id
"""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The rows that a version is frozen from, all of one snapshot.

    Attributes:
        rows: members in plan order: place, step_uid, step_id, trajectory_id, trajectory_uid, content_hash, ``LABELS``,
            and what provenance counts.
        source_rewards: the rewards that each source gave each trajectory (``dataset_rewards`` without its version).
        values: (step_id, value) of the recipe's critic; None where it names none.
        policy_events: what trainers had reported.
        edits: the edited answers that counted then, of members.
    """

    rows: pa.Table
    source_rewards: pa.Table
    values: pa.Table | None
    policy_events: list[PolicyEvent]
    edits: list[Edit]


class Versions:
    """``pool.versions``: frozen dataset versions. ``core.batch.datasets`` makes them."""

    def __init__(self, database: Database, reader: ViewReader, rewards: RewardPolicies) -> None:
        self._db, self._reader, self._rewards = database, reader, rewards
        self._lock = threading.Lock()
        self._counted: LRUCache[tuple[str, MemberFilter | None], dict[str, Any]] = LRUCache(MAX_COUNTED)

    def snapshot(self, view: View, *, channel: str, value_model: str | None = None) -> Snapshot:
        """Everything of a view that a version keeps, read at one moment. InvalidInput when nothing matches."""
        with self._reader.reading(view) as (cursor, seen):
            uids = plan_rows(cursor, seen, channel)["step_uid"].combine_chunks()
            if not len(uids):
                raise InvalidInput("The view holds no step of this channel.", field="view")
            wanted = pa.table({"step_uid": uids, "place": pa.array(np.arange(len(uids), dtype=np.int64))})
            with registered(cursor, wanted_rows=wanted):
                table = arrow(cursor, _SNAPSHOT)
            owners = pa.table({"trajectory_id": pc.unique(table["trajectory_id"])})
            with registered(cursor, scope_trajectories=owners):
                source_rewards = arrow(
                    cursor,
                    f"WITH {SOURCE_REWARDS} SELECT * FROM source_rewards"
                    " SEMI JOIN scope_trajectories USING (trajectory_id) ORDER BY trajectory_id, source",
                )
            values = None
            if value_model is not None:
                with registered(cursor, wanted_rows=table.select(["step_uid", "step_id"])):
                    values = arrow(
                        cursor,
                        "SELECT w.step_id, arg_max(v.value, (v.created_at, v.rowid)) AS value FROM step_values v"
                        " JOIN wanted_rows w USING (step_uid) WHERE v.model = ? GROUP BY w.step_id ORDER BY w.step_id",
                        [value_model],
                    )
            edits = in_force(cursor)
            members = set(uids.to_pylist()) if edits else set()
            edits = [one for one in edits if one.step_uid in members]
            return Snapshot(table, source_rewards, values, list_policy_events(cursor), edits)

    def store(
        self,
        head: Mapping[str, Any],
        members: pa.Table,
        source_rewards: pa.Table,
        values: pa.Table | None,
        edits: Sequence[Edit] = (),
        *,
        before_commit: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        """Write a version in one transaction; returns it as ``get`` does.

        Args:
            head: name, parent (a name or uid, or None), channel, view, recipe, redaction, provenance, policy_events,
                value_model, author, note.
            members: ``Snapshot.rows`` without dropped steps, with ``MASK_COLUMNS`` if redaction masked tokens.
            source_rewards, values: of the snapshot.
            edits: edited answers of members.
            before_commit: called at the end of the transaction; what it raises rolls it back.

        Raises:
            Conflict: the name is taken, or a member was deleted meanwhile.
            NotFound: no such parent.
        """
        name = str(head["name"]).strip()
        if not name:
            raise InvalidInput("A name is needed.", field="name")
        if not len(members):
            raise InvalidInput("No step is left to freeze.", field="view")
        members = _with_masks(members)
        view: View = head["view"]
        uid = f"ds-{uuid.uuid4().hex}"
        with self._db.write(NO_CHANGES) as cursor:
            if cursor.execute("SELECT count(*) FROM dataset_versions WHERE name = ?", [name]).fetchall()[0][0]:
                raise Conflict(f"There is a dataset version {name!r} already.", field="name", hint="Choose another.")
            parent = None if head.get("parent") is None else _head(cursor, head["parent"])["version_uid"]
            number = cursor.execute("SELECT coalesce(max(version_id), 0) + 1 FROM dataset_versions").fetchall()[0][0]
            columns = ", ".join(("place", "step_id", "trajectory_id", *LABELS, *MASK_COLUMNS))
            with registered(cursor, frozen_members=members):
                gone = cursor.execute(
                    "SELECT count(*) FROM frozen_members WHERE step_id NOT IN (SELECT step_id FROM steps)"
                ).fetchall()[0][0]
                if gone:
                    raise Conflict(f"{gone} steps were deleted meanwhile.", field="view", hint="Freeze again.")
                cursor.execute(
                    f"INSERT INTO dataset_steps (version_id, {columns}) SELECT ?, {columns} FROM frozen_members"
                    " ORDER BY place",
                    [number],
                )
                with registered(cursor, frozen_rewards=source_rewards):
                    cursor.execute(
                        "INSERT INTO dataset_rewards BY NAME SELECT ?::BIGINT AS version_id, * FROM frozen_rewards"
                        " WHERE trajectory_id IN (SELECT trajectory_id FROM frozen_members)",
                        [number],
                    )
                if values is not None:
                    with registered(cursor, frozen_values=values):
                        cursor.execute(
                            "INSERT INTO dataset_values SELECT ?, ?, step_id, value FROM frozen_values"
                            " WHERE step_id IN (SELECT step_id FROM frozen_members)",
                            [number, head["value_model"]],
                        )
            for edit in edits:
                cursor.execute("INSERT INTO dataset_edits VALUES (?, ?)", [number, edit.edit_uid])
            events = [[e.version, str(e.event), e.created_at, dict(e.metadata)] for e in head["policy_events"]]
            n_tokens = sum(
                pc.sum(pc.fill_null(members[side], 0)).as_py() for side in ("n_prompt_tokens", "n_response_tokens")
            )
            cursor.execute(
                f"INSERT INTO dataset_versions VALUES ({', '.join('?' * 19)})",
                [
                    number, uid, name, "", parent, head["channel"], _json(dict(view.filters)), view.where,
                    _json(head["recipe"]), None if head.get("redaction") is None else _json(head["redaction"]),
                    _json(head["provenance"]), _json(events),
                    pc.count_distinct(members["prompt_uid"]).as_py(),
                    pc.count_distinct(members["trajectory_id"]).as_py(), len(members), n_tokens,
                    head["author"], head.get("note"), timestamp(self._db.clock()),
                ],
            )  # fmt: skip
            cursor.execute(
                "UPDATE dataset_versions SET content_hash = ? WHERE version_id = ?",
                [content_hash(cursor, number), number],
            )
            if before_commit is not None:
                before_commit()
            return _public(_head(cursor, uid))

    def all(self) -> list[dict[str, Any]]:
        """All versions, newest first."""
        with self._db.read() as cursor:
            return [_public(row) for row in rows(cursor, f"{_HEADS} ORDER BY v.version_id DESC")]

    def get(self, name: str) -> dict[str, Any]:
        """One version by its name or uid. NotFound when there is none."""
        with self._db.read() as cursor:
            return _public(_head(cursor, name))

    def verify(self, name: str) -> bool:
        """Whether the stored version still has its hash."""
        with self._db.read() as cursor:
            head = _head(cursor, name)
            number, frozen = head["version_id"], head["content_hash"]
            return frozen in (content_hash(cursor, number), _first_hash(cursor, number))

    def members(
        self, name: str, chosen: MemberFilter | None = None, *, order: str = "place", limit: int = 50, offset: int = 0
    ) -> pa.Table:
        """A page of the members with the columns of ``MEMBER_COLUMNS``, in plan order or another.

        Previews are of the captured answer: ``core.batch.versions.member_rows`` redacts them.
        """
        with self._db.read() as cursor:
            number = _head(cursor, name)["version_id"]
            return member_page(cursor, number, chosen or MemberFilter(), order=order, limit=limit, offset=offset)

    def summary(self, name: str, chosen: MemberFilter | None = None) -> dict[str, Any]:
        """Counts and mean reward of the members that a filter lets through; see ``member_summary``."""
        wanted = chosen or MemberFilter()
        with self._db.read() as cursor:
            return self._counted_once(cursor, name, wanted, lambda number: member_summary(cursor, number, wanted))

    def member_values(self, name: str) -> Mapping[str, list[str]]:
        """The values of the members' columns that a ``MemberFilter`` compares with."""
        with self._db.read() as cursor:
            return self._counted_once(cursor, name, None, lambda number: member_values(cursor, number))

    def _counted_once(
        self, cursor: Cursor, name: str, chosen: MemberFilter | None, count: Callable[[int], dict[str, Any]]
    ) -> dict[str, Any]:
        """The result of ``count`` with the version's number: computed once, since a version never changes."""
        head = _head(cursor, name)
        key = head["version_uid"], chosen
        with self._lock:
            counted = self._counted.get(key)
        if counted is None:
            counted = count(head["version_id"])
            with self._lock:
                self._counted[key] = counted
        return dict(counted)

    def diff(
        self,
        a: str,
        b: str,
        *,
        limit: int = SHOWN_CHANGES,
        offset: int = 0,
        change: str | None = None,
        label: str | None = None,
        text: str = "",
    ) -> dict[str, Any]:
        """What differs from version ``a`` to version ``b``.

        Args:
            limit, offset: the page of ``changes``.
            change: only steps that were ``added``, ``removed`` or ``changed``; the counts are of all.
            label: only changed steps whose value of this label differs.
            text: only steps with this in a step's, trajectory's or prompt group's uid.

        Returns:
            ``{a, b, counts: {added, removed, changed, same, by_label: {label: n}}, rewards, n_changes, changes,
            truncated, recipe}``. ``rewards`` are of trajectories: ``{mean: [a, b], n_scored: [a, b], n_rose, n_fell}``.
            ``n_changes`` counts the steps that fit; ``changes`` are at most ``limit`` of them in plan order:
            ``{step_uid, trajectory_uid, prompt_uid, step_index, change, trajectory_reward: [old, new],
            labels: {label: [old, new]}}``.

        Raises:
            InvalidInput: no such label.
            NotFound: no such version.
        """
        compared = (*LABELS, *MASK_COLUMNS)
        columns = ", ".join(f"a.{name} AS a_{name}, b.{name} AS b_{name}" for name in compared)
        differs = " OR ".join(f"a.{name} IS DISTINCT FROM b.{name}" for name in compared)
        if label is not None and label not in compared:
            raise InvalidInput(f"There is no label {label!r}.", field="label", hint=f"One of {', '.join(compared)}.")
        wanted = ["$change::VARCHAR IS NULL OR change = $change"]
        if label is not None:
            wanted.append(f"change = 'changed' AND a_{label} IS DISTINCT FROM b_{label}")
        if text:
            wanted.append(uid_condition("step_uid", "trajectory_uid", "prompt_uid"))
        fits = " AND ".join(f"({one})" for one in wanted)
        with self._db.read() as cursor:
            heads = [_head(cursor, one) for one in (a, b)]
            bound = {"a": heads[0]["version_id"], "b": heads[1]["version_id"]}
            sql = _DIFF.format(columns=columns, differs=differs)
            counted = rows(
                cursor,
                "SELECT change, count(*) AS n, "
                + ", ".join(f"count(*) FILTER (a_{n} IS DISTINCT FROM b_{n}) AS n_{n}" for n in compared)
                + f" FROM ({sql}) GROUP BY change",
                bound,
            )
            of_page = {**bound, "change": change, **({"text": text} if text else {})}
            (n_changes,) = cursor.execute(f"SELECT count(*) FROM ({sql}) WHERE {fits}", of_page).fetchall()[0]
            changes = rows(
                cursor,
                f"SELECT * EXCLUDE (place) FROM ({sql}) WHERE {fits}"
                f" ORDER BY place, step_uid LIMIT {int(limit)} OFFSET {int(offset)}",
                of_page,
            )
            (rewards,) = rows(cursor, _REWARDS_OF_TWO, bound)
        by_change = {row["change"]: row for row in counted}
        n = {change: by_change.get(change, {"n": 0})["n"] for change in ("added", "removed", "changed")}
        changed = by_change.get("changed", {})
        return {
            "a": heads[0]["name"],
            "b": heads[1]["name"],
            "counts": {
                **n,
                "same": heads[0]["n_steps"] - n["removed"] - n["changed"],
                "by_label": {label: changed[f"n_{label}"] for label in compared if changed.get(f"n_{label}")},
            },
            "rewards": {
                "mean": [rewards["mean_a"], rewards["mean_b"]],
                "n_scored": [rewards["n_a"], rewards["n_b"]],
                "n_rose": rewards["n_rose"],
                "n_fell": rewards["n_fell"],
            },
            "n_changes": n_changes,
            "changes": [_change(row, compared) for row in changes],
            "truncated": len(changes) < n_changes,
            "recipe": [decode(head["recipe"]) for head in heads],
        }

    def rows(self, name: str) -> pa.Table:
        """Members in plan order with the columns of ``plan_rows``, labels as they were frozen."""
        with self._db.read() as cursor:
            return arrow(cursor, _ROWS, [_head(cursor, name)["version_id"]])

    def labels(self, name: str, trajectory_uid: str) -> list[dict[str, Any]]:
        """A version's rows of one trajectory's members: step_uid, ``LABELS`` and masks, in plan order."""
        with self._db.read() as cursor:
            return rows(
                cursor,
                f"SELECT f.step_uid, {', '.join(f'd.{name}' for name in (*LABELS, *MASK_COLUMNS))}"
                " FROM dataset_steps d JOIN steps f USING (step_id)"
                " JOIN trajectories t ON t.trajectory_id = d.trajectory_id"
                " WHERE d.version_id = ? AND t.trajectory_uid = ? ORDER BY d.place",
                [_head(cursor, name)["version_id"], trajectory_uid],
            )

    def masks(self, name: str) -> dict[str, tuple[list[int], list[int], int]]:
        """step_uid -> (starts, ends, id in their place) of the members with redacted tokens."""
        with self._db.read() as cursor:
            masks = cursor.execute(
                "SELECT f.step_uid, d.mask_starts, d.mask_ends, d.mask_id"
                " FROM dataset_steps d JOIN steps f USING (step_id)"
                " WHERE d.version_id = ? AND d.mask_starts IS NOT NULL",
                [_head(cursor, name)["version_id"]],
            ).fetchall()
        return {uid: (starts, ends, mask_id) for uid, starts, ends, mask_id in masks}

    def edits(self, name: str) -> list[Edit]:
        """The edited answers that it holds, in the order of making."""
        with self._db.read() as cursor:
            return of_version(cursor, _head(cursor, name)["version_id"])

    def policy_events(self, name: str) -> list[PolicyEvent]:
        """What trainers had reported when it was frozen."""
        with self._db.read() as cursor:
            events = json.loads(_head(cursor, name)["policy_events"])
        return [PolicyEvent(*event) for event in events]

    def values(self, name: str, step_uids: Sequence[str] | pa.Array, model: str) -> pa.Array:
        """The frozen values of a critic, float64 [n]. InvalidInput for a critic that the version does not hold."""
        wanted = pa.table({"uid": step_uids, "place": np.arange(len(step_uids))})
        with self._db.read() as cursor, registered(cursor, wanted_values=wanted):
            number = _head(cursor, name)["version_id"]
            held = cursor.execute(
                "SELECT count(*) FROM dataset_values WHERE version_id = ? AND model = ?", [number, model]
            ).fetchall()[0][0]
            if not held:
                raise InvalidInput(
                    f"The version holds no values of {model!r}.",
                    field="recipe.value_model",
                    hint="Freeze with a recipe that names this value_model.",
                )
            return arrow(
                cursor,
                "SELECT d.value FROM wanted_values w LEFT JOIN steps f ON f.step_uid = w.uid"
                " LEFT JOIN dataset_values d ON d.step_id = f.step_id AND d.version_id = ? AND d.model = ?"
                " ORDER BY w.place",
                [number, model],
            )["value"].combine_chunks()

    def rewards(self, name: str, policy: Spec) -> pa.Table:
        """(trajectory_uid, reward) by a reward policy over the rewards that each source had given at the freeze."""
        rule, parameters = rule_sql(parse_policy(self._rewards.resolve(policy)))
        with self._db.read() as cursor:
            return arrow(
                cursor,
                f"WITH by_policy AS (SELECT trajectory_id, {rule} AS reward FROM dataset_rewards"
                " WHERE version_id IN (SELECT version_id FROM dataset_versions WHERE $version IN (version_uid, name))"
                " GROUP BY trajectory_id)"
                " SELECT t.trajectory_uid, p.reward FROM by_policy p JOIN trajectories t USING (trajectory_id)"
                " WHERE p.reward IS NOT NULL",
                {**parameters, "version": name},
            )


_HEADS = """
SELECT v.*, p.name AS parent FROM dataset_versions v LEFT JOIN dataset_versions p ON p.version_uid = v.parent_uid
"""


def _json(value: Any) -> str:
    return canonical(value).decode("utf-8")


def _head(cursor: Cursor, name: str) -> dict[str, Any]:
    versions = rows(cursor, f"{_HEADS} WHERE v.name = ? OR v.version_uid = ?", [name, name])
    if not versions:
        raise NotFound(f"No dataset version {name!r}.", field="name", hint="GET /api/v1/datasets lists them.")
    return versions[0]


def _public(row: Mapping[str, Any]) -> dict[str, Any]:
    head = {name: value for name, value in row.items() if name not in ("version_id", "policy_events", "parent_uid")}
    head["view"] = {"filters": decode(head.pop("filters")), "where": head.pop("where_text")}
    for name in ("recipe", "redaction", "provenance"):
        head[name] = decode(head[name])
    return {**head, "created_at": seconds(head["created_at"])}


def _change(row: Mapping[str, Any], compared: Sequence[str]) -> dict[str, Any]:
    change = {name: row[name] for name in ("step_uid", "trajectory_uid", "prompt_uid", "step_index", "change")}
    pairs = {name: [row[f"a_{name}"], row[f"b_{name}"]] for name in compared}
    change["trajectory_reward"] = pairs["trajectory_reward"]
    if change["change"] == "changed":
        pairs = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        return {**change, "labels": pairs}
    return {**change, "labels": {}}


def _with_masks(members: pa.Table) -> pa.Table:
    kinds = (pa.list_(pa.int32()), pa.list_(pa.int32()), pa.int32())
    for name, kind in zip(MASK_COLUMNS, kinds, strict=True):
        if name not in members.column_names:
            members = members.append_column(name, pa.nulls(len(members), kind))
    return members.set_column(
        members.column_names.index("place"), "place", pa.array(np.arange(len(members), dtype=np.int64))
    )


_SINCE = ("correct", "trajectory_correct")
"""Labels that versions of the first release did not have, and their hash not either."""


def _first_hash(cursor: Cursor, version_id: int) -> str | None:
    """The hash as the first release computed it; None for a version with columns that it did not have."""
    changed = " OR ".join(f"{name} IS NOT NULL" for name in _SINCE)
    later = cursor.execute(
        f"SELECT count(*) FROM dataset_steps WHERE version_id = ? AND ({changed})", [version_id]
    ).fetchall()[0][0]
    if later:
        return None
    digest = hashlib.sha256(b"claw-studio dataset 1")
    update_hash(digest, arrow(cursor, _HASHED, [version_id]).drop_columns(list(_SINCE)))
    for sql in (_HASHED_REWARDS, _HASHED_VALUES):
        update_hash(digest, arrow(cursor, sql, [version_id]))
    return digest.hexdigest()


def content_hash(cursor: Cursor, version_id: int) -> str:
    """sha256 over the content of a version; independent of the file's internal step ids."""
    digest = hashlib.sha256(b"claw-studio dataset 1")
    for sql in (_HASHED, _HASHED_REWARDS, _HASHED_VALUES):
        update_hash(digest, arrow(cursor, sql, [version_id]))
    for edit in of_version(cursor, version_id):
        digest.update(canonical([edit.edit_uid, edit.step_uid, edit.message, edit.response_ids.tolist()]))
    return digest.hexdigest()
