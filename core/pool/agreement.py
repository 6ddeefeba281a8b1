"""``pool.agreement``: percent agreement and Cohen's kappa of two reviewers, and their disagreements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.errors import InvalidInput
from core.pool.query import reads
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import compile_view, source_sql
from core.pool.state.sharedsql import UNDONE
from core.pool.store.database import Database, rows
from core.types import View

KINDS = {
    "quality": "value_text",
    "correct": "CASE value_number WHEN 1 THEN 'true' WHEN 0 THEN 'false' END",
    "trainable": "CASE value_number WHEN 1 THEN 'true' WHEN 0 THEN 'false' END",
    "reward": "value_number::VARCHAR",
}
"""Kinds of opinion that can agree -> the opinion as a label. Rewards agree when they are equal."""
LEVELS = ("step", "trajectory")

_OPINIONS = """
WITH undone AS (
    {undone}
), latest AS (
    SELECT {key}, author, arg_max_null({label}, annotation_id) AS label FROM annotations
    WHERE kind = ? AND {level} AND action_id NOT IN (FROM undone) {within} GROUP BY {key}, author
), opinion AS (
    SELECT * FROM latest WHERE label IS NOT NULL
)
"""


def cohen_kappa(matrix: Sequence[Sequence[int]]) -> float | None:
    """(p_o - p_e) / (1 - p_e) of a square table of counts (Cohen 1960); None where it is undefined.

    Undefined: no item, or both reviewers gave one and the same label to everything.
    """
    n = sum(map(sum, matrix))
    if not n:
        return None
    observed = sum(matrix[i][i] for i in range(len(matrix)))
    expected = sum(sum(matrix[i]) * sum(row[i] for row in matrix) for i in range(len(matrix)))
    # Times n² on both sides: whole numbers until the one division.
    return None if expected == n * n else (observed * n - expected) / (n * n - expected)


PEOPLE = ("studio", "human")
"""Sources of what people say: the pages, and feedback."""

_PEOPLE = """
WITH undone AS (
    {undone}
), said AS (
    SELECT trajectory_id, kind, annotation_id,
        CASE WHEN kind <> 'quality' THEN value_number WHEN value_text = 'good' THEN 1.0 WHEN value_text = 'bad' THEN 0.0
        END AS label
    FROM annotations
    WHERE step_id IS NULL AND kind IN ('reward', 'correct', 'quality')
        AND list_contains($people::VARCHAR[], source) AND action_id NOT IN (FROM undone)
), newest AS (
    SELECT trajectory_id, kind, arg_max_null(label, annotation_id) AS label FROM said GROUP BY trajectory_id, kind
)
SELECT t.trajectory_uid, arg_min(n.label, list_position(['reward', 'correct', 'quality'], n.kind)) AS label
FROM newest n JOIN trajectories t USING (trajectory_id)
WHERE n.label IS NOT NULL AND t.trajectory_uid IN (SELECT unnest($uids::VARCHAR[]))
GROUP BY t.trajectory_uid
"""


class Agreement:
    """``pool.agreement``: compares reviewers by each author's newest label that is not undone."""

    def __init__(self, database: Database, reader: ViewReader) -> None:
        self._db, self._reader = database, reader

    def reviewers(self, kind: str = "quality", level: str = "step") -> list[dict[str, Any]]:
        """The authors of labels: ``{author, n}``, most first."""
        sql, parameters = _opinions(kind, level, View())
        with self._db.read() as cursor:
            return rows(
                cursor,
                f"{sql} SELECT author, count(*) AS n FROM opinion GROUP BY author ORDER BY n DESC, author",
                parameters,
            )

    def people(self, trajectory_uids: Sequence[str]) -> dict[str, float]:
        """Trajectory -> what people say of it, in [0, 1]: their newest reward, else correct (1) or not, else good (1)
        or bad. Trajectories without such a label are left out."""
        with self._db.read() as cursor:
            labels = cursor.execute(
                _PEOPLE.format(undone=UNDONE), {"people": list(PEOPLE), "uids": list(trajectory_uids)}
            ).fetchall()
        return {uid: float(label) for uid, label in labels}

    def between(
        self, a: str, b: str, kind: str = "quality", level: str = "step", view: View | None = None
    ) -> dict[str, Any]:
        """How far two reviewers agree on what both have labelled.

        Returns:
            ``{a, b, kind, level, n, n_agree, percent, kappa, labels, matrix}``: ``matrix[i][j]`` counts items that
            ``a`` gave ``labels[i]`` and ``b`` ``labels[j]``; percent and kappa are None with nothing to compare.
        """
        if a == b:
            raise InvalidInput("Name two reviewers.", field="b")
        key = _key(level)
        with self._reader.reading(view or View()) as (cursor, seen), reads.explained(view or View()):
            sql, parameters = _opinions(kind, level, seen)
            pairs = cursor.execute(
                f"{sql} SELECT x.label, y.label, count(*) FROM opinion x JOIN opinion y USING ({key})"
                " WHERE x.author = ? AND y.author = ? GROUP BY ALL",
                [*parameters, a, b],
            ).fetchall()
        labels = sorted({label for row in pairs for label in row[:2]})
        matrix = [[0] * len(labels) for _ in labels]
        for label_a, label_b, n in pairs:
            matrix[labels.index(label_a)][labels.index(label_b)] = n
        n = sum(map(sum, matrix))
        agreed = sum(matrix[i][i] for i in range(len(labels)))
        return {
            "a": a, "b": b, "kind": kind, "level": level, "n": n, "n_agree": agreed,
            "percent": 100 * agreed / n if n else None, "kappa": cohen_kappa(matrix),
            "labels": labels, "matrix": matrix,
        }  # fmt: skip

    def disagreements(
        self,
        kind: str = "quality",
        level: str = "step",
        *,
        authors: Sequence[str] | None = None,
        view: View | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> list[dict[str, Any]]:
        """Items that reviewers (these, or any) label differently, newest label first.

        Each is ``{step_uid, trajectory_uid, opinions: [{author, value}]}``; ``step_uid`` is None at trajectory level.
        """
        key = _key(level)
        chosen = "" if authors is None else "WHERE list_contains(?::VARCHAR[], author)"
        step = "s.step_uid" if level == "step" else "NULL::VARCHAR AS step_uid"
        join = "JOIN steps s USING (step_id) JOIN trajectories t ON t.trajectory_id = s.trajectory_id"
        join = join if level == "step" else "JOIN trajectories t USING (trajectory_id)"
        with self._reader.reading(view or View()) as (cursor, seen), reads.explained(view or View()):
            sql, parameters = _opinions(kind, level, seen)
            disagreements = rows(
                cursor,
                f"{sql}, torn AS (SELECT {key}, list({{'author': author, 'value': label}} ORDER BY author) AS opinions"
                f" FROM opinion {chosen} GROUP BY {key} HAVING count(DISTINCT label) > 1)"
                f" SELECT {step}, t.trajectory_uid, torn.opinions FROM torn {join}"
                f" ORDER BY torn.{key} DESC LIMIT ? OFFSET ?",
                [*parameters, *([] if authors is None else [list(authors)]), limit, offset],
            )
        return disagreements


def _key(level: str) -> str:
    if level not in LEVELS:
        raise InvalidInput(f"level is {' or '.join(LEVELS)}.", field="level")
    return f"{level}_id"


def _opinions(kind: str, level: str, view: View) -> tuple[str, list[Any]]:
    if kind not in KINDS:
        raise InvalidInput(
            f"Opinions of kind {kind!r} can't be compared.", field="kind", hint=f"One of {', '.join(KINDS)}."
        )
    key = _key(level)
    within, parameters = "", [kind]
    if view.filters or view.where.strip():
        condition = compile_view(view)
        within = f"AND {key} IN (SELECT s.{key} {source_sql(condition)})"
        parameters += condition.parameters
    about = "step_id IS NOT NULL" if level == "step" else "step_id IS NULL"
    return _OPINIONS.format(undone=UNDONE, key=key, label=KINDS[kind], level=about, within=within), parameters
