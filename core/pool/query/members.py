"""Members of a dataset version page by page: filtered, sorted and counted, with their labels as they were frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from core.pool.query.columns import order_sql, parse_order
from core.pool.store.database import Cursor, arrow, in_list, rows

MEMBER_COLUMNS: dict[str, str] = {
    "place": "d.place",
    "step_uid": "f.step_uid",
    "trajectory_uid": "t.trajectory_uid",
    "prompt_uid": "d.prompt_uid",
    "step_index": "f.step_index",
    "agent": "f.agent",
    "model": "f.model",
    "call_kind": "d.call_kind",
    "trajectory_reward": "d.trajectory_reward",
    "reward": "d.reward",
    "trajectory_quality": "d.trajectory_quality",
    "quality": "d.quality",
    "trajectory_correct": "d.trajectory_correct",
    "correct": "d.correct",
    "trainable": "d.trainable",
    "tags": "d.tags",
    "n_prompt_tokens": "f.n_prompt_tokens",
    "n_response_tokens": "f.n_response_tokens",
    "n_masked_tokens": "coalesce(list_sum(d.mask_ends) - list_sum(d.mask_starts), 0)::BIGINT",
    "policy_version": "f.policy_version",
    "preview": "f.preview",
}
"""Column of a member -> its SQL; each can be sorted by."""

REWARDS: dict[str, str] = {
    "success": "d.trajectory_reward > 0.5",
    "failure": "d.trajectory_reward <= 0.5",
    "unscored": "d.trajectory_reward IS NULL",
}
"""Kinds of trajectories by their frozen reward; success as in ``success_rate``."""

_JOINS = {
    "f.": " JOIN steps f ON f.step_id = d.step_id",
    "t.": " JOIN trajectories t ON t.trajectory_id = d.trajectory_id",
}
_FACETS = ("agent", "call_kind", "trajectory_quality", "quality")


@dataclass(frozen=True, slots=True)
class MemberFilter:
    """Which members are listed; None and the empty text let all through.

    Attributes:
        text: part of a step's, trajectory's or prompt group's uid.
        reward: kind of its trajectory, one of ``REWARDS``.
        agent, call_kind, trajectory_quality, quality: the value.
        trainable: as frozen.
        masked: whether tokens of it were redacted.
    """

    text: str = ""
    reward: str | None = None
    agent: str | None = None
    call_kind: str | None = None
    trajectory_quality: str | None = None
    quality: str | None = None
    trainable: bool | None = None
    masked: bool | None = None

    def sql(self) -> tuple[str, dict[str, Any]]:
        """Conditions that follow a WHERE, each with its AND, and their parameters."""
        parts: list[str] = []
        bound: dict[str, Any] = {}
        if self.text:
            parts.append(uid_condition("f.step_uid", "t.trajectory_uid", "d.prompt_uid"))
            bound["text"] = self.text
        if self.reward is not None:
            parts.append(REWARDS[self.reward])
        for name in _FACETS:
            if getattr(self, name) is not None:
                parts.append(f"{MEMBER_COLUMNS[name]} = ${name}")
                bound[name] = getattr(self, name)
        if self.trainable is not None:
            parts.append("d.trainable" if self.trainable else "NOT d.trainable")
        if self.masked is not None:
            parts.append(f"d.mask_starts IS {'NOT ' if self.masked else ''}NULL")
        return "".join(f" AND ({part})" for part in parts), bound


def uid_condition(*columns: str) -> str:
    """SQL: one of the columns holds ``$text``, in any case of letters."""
    return " OR ".join(f"contains(lower({column}), lower($text::VARCHAR))" for column in columns)


def _from(*texts: str) -> str:
    """FROM and WHERE of a version's members, joined with what these SQL texts name."""
    joins = "".join(join for alias, join in _JOINS.items() if any(alias in text for text in texts))
    return f"FROM dataset_steps d{joins} WHERE d.version_id = $version"


def member_page(
    cursor: Cursor, version_id: int, chosen: MemberFilter, *, order: str, limit: int, offset: int
) -> pa.Table:
    """One page with the columns of ``MEMBER_COLUMNS``. InvalidInput names what cannot be sorted by."""
    parsed = parse_order(order, MEMBER_COLUMNS)
    # First the page's rows by the columns that choose and sort them, then all columns of these rows.
    step_ids = _page_ids(cursor, version_id, chosen, parsed, int(limit), int(offset))
    listed = ", ".join(f"{sql} AS {name}" for name, sql in MEMBER_COLUMNS.items())
    with in_list(cursor, "d.step_id", step_ids) as (member, bound), in_list(cursor, "f.step_id", step_ids) as (fact, _):
        sql = f"SELECT d.step_id AS row_id, {listed} {_from(listed)} AND {member} AND {fact}"
        table = arrow(cursor, sql.replace("$version", str(int(version_id))), [*bound, *bound])
    order_of = np.argsort(table["row_id"].to_numpy())
    at = order_of[np.searchsorted(table["row_id"].to_numpy(), step_ids, sorter=order_of)]
    return table.drop_columns("row_id").take(pa.array(at))


def _page_ids(
    cursor: Cursor, version_id: int, chosen: MemberFilter, parsed: list[tuple[str, str, bool]], limit: int, offset: int
) -> np.ndarray:
    """``step_id`` of the page's rows in order, int64."""
    where, bound = chosen.sql()
    if not where and [(name, descending) for name, _, descending in parsed] == [("place", False)]:
        # Places count from 0 without gaps.
        where, paging = f" AND d.place >= {offset} AND d.place < {offset + limit}", ""
    else:
        paging = f" LIMIT {limit} OFFSET {offset}"
    by = order_sql(parsed, "d.place")
    sql = f"SELECT d.step_id {_from(where, by)} {where} {by}{paging}"
    ids: np.ndarray = arrow(cursor, sql, {**bound, "version": version_id})["step_id"].to_numpy()
    return ids


def member_summary(cursor: Cursor, version_id: int, chosen: MemberFilter) -> dict[str, Any]:
    """Counts of the listed members: ``{n_steps, n_trajectories, mean_reward, n_scored, n_success}``.

    ``mean_reward`` is of the scored trajectories, None when there is none.
    """
    where, bound = chosen.sql()
    members = f"SELECT d.trajectory_id, any_value(d.trajectory_reward) AS reward, count(*) AS n {_from(where)} {where}"
    (counts,) = rows(
        cursor,
        "SELECT coalesce(sum(n), 0)::BIGINT AS n_steps, count(*) AS n_trajectories, avg(reward) AS mean_reward,"
        " count(reward) AS n_scored, count(*) FILTER (reward > 0.5) AS n_success"
        f" FROM ({members} GROUP BY d.trajectory_id)",
        {**bound, "version": version_id},
    )
    return counts


def member_values(cursor: Cursor, version_id: int) -> dict[str, list[str]]:
    """The values to filter by of agent, call kind and qualities, the most frequent first."""
    values = {}
    for name in _FACETS:
        column = MEMBER_COLUMNS[name]
        counted = cursor.execute(
            f"SELECT {column} {_from(column)} AND {column} IS NOT NULL GROUP BY ALL ORDER BY count(*) DESC, 1"
            " LIMIT 100",
            {"version": version_id},
        ).fetchall()
        values[name] = [str(value) for (value,) in counted]
    return values
