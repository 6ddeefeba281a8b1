"""The temporary tables that ``derive``, ``relabel`` and ``adoption`` share: their definitions and their owner.

A table belongs to the connection that created it, and lasts until it is filled again. A function that reads tables
takes the ``Workspace`` and names them in its docstring; its caller must have filled them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pyarrow as pa

from core.pool.state.sharedsql import UNDONE
from core.pool.store.database import Cursor, registered

TABLES = {
    "touched": "what the annotations of some actions are about: trajectory_id, step_id, kind",
    "scope": "the trajectories whose state is brought in line: trajectory_id",
    "target": "the steps whose state an action may change: step_id",
    "live": "annotations that nobody has undone: the columns of ``annotations`` in ``_LIVE``",
    "step_opinions": "the latest live opinion of each kind on a step, by step_id",
    "trajectory_opinions": "the same on a trajectory as a whole, by trajectory_id",
    "reported": "producers' reports on the trajectories in ``scope``: group, channel, agent, closed, reward, outcome",
    "effective": "the new state of steps: step_id and the columns of ``step_state`` that are made anew",
    "effective_trajectories": "the new state of trajectories: trajectory_id and columns of ``trajectory_state``",
    "regrouped": "prompt groups whose members or rewards may have changed: prompt_uid, channel",
    "by_scope": "rewards that a reward policy gives to trajectories in ``scope``: trajectory_id, reward",
}
"""Temporary table -> its content."""

_LIVE = "a.annotation_id, a.trajectory_id, a.step_id, a.kind, a.value_number, a.value_text, a.source"
# The steps spoken of, and all steps of a trajectory whose own trainable label they may follow.
_TARGET = """
SELECT step_id FROM touched WHERE step_id IS NOT NULL
UNION
SELECT step_id FROM step_state
WHERE trajectory_id IN (SELECT trajectory_id FROM touched WHERE step_id IS NULL AND kind = 'trainable')
"""
_OPINIONS = """
WITH tag AS (
    SELECT {key}, value_text AS tag FROM live WHERE kind = 'tag' AND {level}
    GROUP BY {key}, value_text HAVING arg_max(value_number, annotation_id) = 1
), tags AS (
    SELECT {key}, '[' || array_to_string(
            list_transform(list_sort(list(tag)), lambda tag: chr(10) || to_json(tag)::VARCHAR), ','
        ) || ']' AS tags_json
    FROM tag GROUP BY {key}
), latest AS (
    SELECT {key},
        arg_max_null(value_number, annotation_id) FILTER (kind = 'reward') AS reward,
        arg_max_null(value_text, annotation_id) FILTER (kind = 'quality') AS quality,
        arg_max_null(value_number, annotation_id) FILTER (kind = 'trainable') AS trainable,
        arg_max_null(value_number, annotation_id) FILTER (kind = 'correct') AS correct,
        arg_max(source, annotation_id) FILTER (kind = 'reward') AS reward_source,
        count(*) FILTER (kind = 'note') AS n_notes
    FROM live WHERE {level} GROUP BY {key}
)
SELECT latest.*, tags.tags_json FROM latest LEFT JOIN tags USING ({key})
"""
_NO_OPINIONS = """
SELECT NULL::BIGINT AS {key}, NULL::DOUBLE AS reward, NULL::VARCHAR AS quality, NULL::DOUBLE AS trainable,
    NULL::DOUBLE AS correct, NULL::VARCHAR AS reward_source, NULL::BIGINT AS n_notes, NULL::VARCHAR AS tags_json
WHERE FALSE
"""
"""``_OPINIONS`` of an empty ``live``, which most batches of ingest have. DuckDB plans it faster."""


class Workspace:
    """Fills the tables of ``TABLES`` inside a write transaction."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self._n_live: int | None = None

    def fill(self, table: str, sql: str, parameters: Any = ()) -> None:
        """Make one of ``TABLES`` from a query."""
        assert table in TABLES
        counts = self.cursor.execute(f"CREATE OR REPLACE TEMP TABLE {table} AS {sql}", parameters or None).fetchall()
        if table == "live":
            self._n_live = counts[0][0]

    def holds(self, sql: str, parameters: Any) -> bool:
        """The answer to a query of one yes or no."""
        return bool(self.cursor.execute(sql, parameters).fetchall()[0][0])

    def scope_to_all(self) -> None:
        """``scope``: all trajectories."""
        self.fill("scope", "SELECT trajectory_id FROM trajectories")

    def scope_to(self, trajectory_ids: Iterable[int]) -> None:
        """``scope``: these trajectories."""
        wanted = pa.array(sorted(set(trajectory_ids)), pa.int64())
        with registered(self.cursor, wanted_scope=pa.table({"trajectory_id": wanted})):
            self.fill("scope", "SELECT trajectory_id FROM wanted_scope")

    def scope_to_channel(self, channel: str) -> None:
        """``scope``: the trajectories of a channel."""
        self.fill("scope", "SELECT trajectory_id FROM trajectory_state WHERE channel = ?", [channel])

    def touched_by(self, action_ids: Sequence[int]) -> list[tuple[str, bool, bool]]:
        """``touched``: (kind, whether some are about trajectories, whether some are about steps) of actions."""
        self.fill(
            "touched",
            "SELECT DISTINCT trajectory_id, step_id, kind FROM annotations"
            " WHERE action_id IN (SELECT unnest(?::BIGINT[]))",
            [list(action_ids)],
        )
        touched: list[tuple[str, bool, bool]] = self.cursor.execute(
            "SELECT kind, bool_or(step_id IS NULL), bool_or(step_id IS NOT NULL) FROM touched GROUP BY kind"
        ).fetchall()
        return touched

    def scope_to_touched(self) -> None:
        """``scope`` and ``target`` from ``touched``."""
        self.fill("scope", "SELECT DISTINCT trajectory_id FROM touched")
        self.fill("target", _TARGET)

    def live_in_scope(self) -> None:
        """``live``: all about the trajectories in ``scope`` and their steps."""
        self.fill(
            "live",
            f"SELECT {_LIVE} FROM annotations a SEMI JOIN scope USING (trajectory_id)"
            f" WHERE a.action_id NOT IN ({UNDONE})",
        )

    def live_of_targets(self, kinds: Collection[str]) -> None:
        """``live``: of these kinds, about the steps in ``target`` and the trajectories in ``scope`` as such."""
        self.fill(
            "live",
            f"SELECT {_LIVE} FROM annotations a WHERE a.kind IN (SELECT unnest(?::VARCHAR[]))"
            f" AND a.action_id NOT IN ({UNDONE}) AND (a.step_id IN (SELECT step_id FROM target)"
            " OR a.step_id IS NULL AND a.trajectory_id IN (SELECT trajectory_id FROM scope))",
            [sorted(kinds)],
        )

    def step_opinions(self) -> None:
        """``step_opinions`` from ``live``."""
        self.fill("step_opinions", self._opinions_sql().format(key="step_id", level="step_id IS NOT NULL"))

    def trajectory_opinions(self) -> None:
        """``trajectory_opinions`` from ``live``."""
        self.fill("trajectory_opinions", self._opinions_sql().format(key="trajectory_id", level="step_id IS NULL"))

    def _opinions_sql(self) -> str:
        return _NO_OPINIONS if self._n_live == 0 else _OPINIONS

    def groups_of_scope(self, *, also_effective: bool = False) -> None:
        """``regrouped``: the groups that ``scope`` is in now, and those it will be in by ``effective_trajectories``."""
        more = " UNION SELECT prompt_uid, channel FROM effective_trajectories" if also_effective else ""
        self.fill(
            "regrouped",
            f"SELECT DISTINCT prompt_uid, channel FROM trajectory_state SEMI JOIN scope USING (trajectory_id){more}",
        )
