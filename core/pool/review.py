"""``pool.review``: the review queue, a view's items with the doubtful ones first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from core.errors import InvalidInput, NotFound
from core.pool.query import reads
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import compile_view, source_sql
from core.pool.state.sharedsql import UNDONE
from core.pool.store.database import Cursor, Database, arrow, rows
from core.types import View


@dataclass(frozen=True, slots=True)
class Order:
    """One order of the queue: its name and description for pages, and its SQL."""

    label: str
    doc: str
    sql: str


ORDERS: dict[str, Order] = {
    "newest": Order("Newest", "Newest first.", "began_at DESC"),
    "uncertain": Order(
        "Uncertain",
        "Labelled unsure first, then groups with a success rate near 0.5.",
        "(quality IS NOT DISTINCT FROM 'unsure') DESC, abs(success_rate - 0.5) ASC NULLS LAST, began_at DESC",
    ),
    "disagreeing": Order(
        "Disagreeing",
        "Reviewers who contradict each other first, then a label that contradicts the reward.",
        "(n_qualities > 1) DESC, (quality = 'good' AND reward <= 0.5 OR quality = 'bad' AND reward > 0.5)"
        " DESC NULLS LAST, began_at DESC",
    ),
    "outliers": Order(
        "High rewards",
        "Rewards furthest above their prompt group's mean first, in its standard deviations.",
        "deviations DESC NULLS LAST, began_at DESC",
    ),
}
"""Order of the review queue -> its description."""

LEVELS = ("step", "trajectory", "group")

_OPINIONS = """
undone AS (
    {undone}
), opinion AS (
    SELECT {key}, author, arg_max_null(value_text, annotation_id) AS quality FROM annotations
    WHERE kind = 'quality' AND {level} AND action_id NOT IN (FROM undone) GROUP BY {key}, author
), said AS (
    SELECT {key}, count(DISTINCT quality) AS n_qualities, max(quality) FILTER (author = $author) AS mine
    FROM opinion GROUP BY {key}
), prompt_group AS (
    SELECT prompt_uid, channel, avg((reward > 0.5)::INTEGER) AS success_rate, avg(reward) AS mean,
        CASE WHEN max(reward) > min(reward) THEN stddev_pop(reward) END AS spread
    FROM trajectory_state GROUP BY prompt_uid, channel
)
"""

_TRAJECTORIES = """
SELECT w.trajectory_uid AS uid, w.quality, w.reward, w.started_at AS began_at, p.success_rate,
    round((w.reward - p.mean) / p.spread, 9) AS deviations, coalesce(n_qualities, 0) AS n_qualities, mine
FROM wanted w JOIN prompt_group p ON p.prompt_uid = w.prompt_uid AND p.channel = w.channel
LEFT JOIN said USING (trajectory_id)
"""

_STEPS = """
SELECT w.step_uid AS uid, w.quality, coalesce(w.reward, w.trajectory_reward) AS reward, w.created_at AS began_at,
    p.success_rate, round((w.trajectory_reward - p.mean) / p.spread, 9) AS deviations,
    coalesce(n_qualities, 0) AS n_qualities, mine
FROM wanted w JOIN prompt_group p ON p.prompt_uid = w.prompt_uid AND p.channel = w.channel
LEFT JOIN said USING (step_id)
"""

_GROUPS = """
SELECT prompt_uid AS uid, max(reward) AS reward, max(began_at) AS began_at, any_value(success_rate) AS success_rate,
    max(deviations) AS deviations, max(n_qualities) AS n_qualities,
    CASE WHEN count(quality) = count(*) THEN max(quality) END AS quality,
    CASE WHEN count(mine) = count(*) THEN max(mine) END AS mine
FROM (SELECT w.prompt_uid, one.* FROM ({trajectories}) one JOIN wanted w ON w.trajectory_uid = one.uid)
GROUP BY prompt_uid
"""


class Review:
    """``pool.review``: the review queue, and an item's effective labels."""

    def __init__(self, database: Database, reader: ViewReader) -> None:
        self._db, self._reader = database, reader

    def queue(self, view: View, level: str, order: str, *, author: str, limit: int = 1000) -> pa.Table:
        """Items of a view in the order of review: ``uid``, ``quality`` (effective), ``mine`` (the author's own).

        Args:
            view: steps, or the trajectories or groups with at least one step of it.
            level: ``step``, ``trajectory`` or ``group`` (``uid`` is the prompt_uid then; its ``quality`` and ``mine``
                are known when all its trajectories have one).
            order: a key of ``ORDERS``.
            author: the author of the label in the column ``mine``.
            limit: the most items.
        """
        if level not in LEVELS:
            raise InvalidInput(f"Nothing is reviewed by {level!r}.", field="level", hint=f"One of {', '.join(LEVELS)}.")
        if order not in ORDERS:
            raise InvalidInput(f"No order {order!r}.", field="order", hint=f"One of {', '.join(ORDERS)}.")
        with self._reader.reading(view) as (cursor, seen), reads.explained(view):
            return _read(cursor, seen, level, ORDERS[order], author, limit)

    def standing(self, level: str, uid: str) -> dict[str, Any]:
        """What counts of one item: quality, correct, trainable, reward, tags.

        A group's are those that its members share. A step also has ``original_reward``. NotFound when there is
        no such item.
        """
        with self._db.read() as cursor:
            items = rows(cursor, _STANDING[level], [uid])
        if not items:
            raise NotFound(f"No {level} {uid!r}.", field=f"{'prompt' if level == 'group' else level}_uid")
        return items[0]


_STANDING = {
    "step": "SELECT s.quality, s.correct, s.trainable, s.reward, f.reward AS original_reward, s.tags"
    " FROM (FROM step_state WHERE step_uid = ?) s JOIN steps f USING (step_id)",
    "trajectory": "SELECT quality, correct, trainable, reward, tags FROM trajectory_state WHERE trajectory_uid = ?",
    "group": """
SELECT CASE WHEN count(quality) = count(*) AND min(quality) = max(quality) THEN max(quality) END AS quality,
    CASE WHEN count(correct) = count(*) AND bool_and(correct) = bool_or(correct) THEN bool_or(correct) END AS correct,
    bool_or(trainable) AS trainable,
    CASE WHEN count(reward) = count(*) AND min(reward) = max(reward) THEN max(reward) END AS reward,
    list_reduce(list(tags), lambda one, other: list_intersect(one, other)) AS tags
FROM trajectory_state WHERE prompt_uid = ? HAVING count(*) > 0
""",
}


def _read(cursor: Cursor, view: View, level: str, order: Order, author: str, limit: int) -> pa.Table:
    if level == "step":
        condition = compile_view(view)
        columns = "s.step_id, s.step_uid, s.prompt_uid, s.channel, s.quality, s.reward, s.created_at"
        wanted = f"SELECT {columns}, t.reward AS trajectory_reward {source_sql(condition, trajectory=True)}"
        opinions, items = _OPINIONS.format(undone=UNDONE, key="step_id", level="step_id IS NOT NULL"), _STEPS
    else:
        condition = reads.matching_trajectories(view)
        wanted = f"SELECT t.* FROM trajectory_state t WHERE {condition.sql}"
        opinions, items = _OPINIONS.format(undone=UNDONE, key="trajectory_id", level="step_id IS NULL"), _TRAJECTORIES
        if level == "group":
            items = _GROUPS.format(trajectories=_TRAJECTORIES)
    sql = (
        f"WITH wanted AS ({wanted}), {opinions.replace('$author', '?')}"
        f" SELECT uid, quality, mine FROM ({items}) ORDER BY {order.sql}, uid LIMIT ?"
    )
    parameters: list[Any] = [*condition.parameters, author, limit]
    return arrow(cursor, sql, parameters)
