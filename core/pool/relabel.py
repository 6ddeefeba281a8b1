"""Opinions into the effective state, touching only what they are about: labelling all of a million steps stays quick.

The rules are those of ``core.pool.derive``; facts, and what follows from them, stand in the state already.
"""

from __future__ import annotations

from core.pool.database import Cursor
from core.pool.derive import judge, note_groups, step_opinions, trajectory_opinions, update_steps

_TOUCHED = """
CREATE OR REPLACE TEMP TABLE touched AS
SELECT DISTINCT trajectory_id, step_id, kind FROM annotations WHERE action_id = ?
"""
_SCOPE = "CREATE OR REPLACE TEMP TABLE scope AS SELECT DISTINCT trajectory_id FROM touched"

# The steps spoken of, and all steps of a trajectory whose own trainable label they may follow.
_TARGETS = """
CREATE OR REPLACE TEMP TABLE target AS
SELECT step_id FROM touched WHERE step_id IS NOT NULL
UNION
SELECT step_id FROM step_state
WHERE trajectory_id IN (SELECT trajectory_id FROM touched WHERE step_id IS NULL AND kind = 'trainable')
"""
_LIVE = """
CREATE OR REPLACE TEMP TABLE live AS
SELECT a.* FROM annotations a
WHERE a.kind IN (SELECT unnest(?::VARCHAR[])) AND a.action_id NOT IN (
    SELECT action_id FROM action_events GROUP BY action_id HAVING arg_max(event, event_id) = 'undo'
) AND (
    a.step_id IN (SELECT step_id FROM target)
    OR a.step_id IS NULL AND a.trajectory_id IN (SELECT trajectory_id FROM scope)
)
"""
_OF_STEP: dict[str, str] = {
    "reward": "coalesce(opinion.reward, f.reward)",
    "quality": "opinion.quality",
    "trainable": """coalesce(
        opinion.trainable = 1,
        s.call_kind = 'main' AND s.status = 'ok' AND s.mismatch IS NULL AND coalesce(whole.trainable, 1) = 1
    )""",
    "correct": "opinion.correct = 1",
    "tags_json": "coalesce(opinion.tags_json, '[]')",
    "n_notes": "coalesce(opinion.n_notes, 0)::INTEGER",
}
_JOINS: dict[str, str] = {
    "reward": "JOIN steps f ON f.step_id = s.step_id",
    "trainable": "LEFT JOIN trajectory_opinions whole ON whole.trajectory_id = s.trajectory_id",
}
_TRAJECTORIES = """
CREATE OR REPLACE TEMP TABLE effective_trajectories AS
WITH said AS (
    SELECT trajectory_id, arg_max(reward, event_id) AS reward
    FROM trajectory_events SEMI JOIN scope USING (trajectory_id) GROUP BY trajectory_id
), step AS (
    SELECT trajectory_id, sum(reward ORDER BY step_id) FILTER (reward IS NOT NULL) AS reward,
        bool_or(trainable) AS trainable
    FROM step_state SEMI JOIN scope USING (trajectory_id) GROUP BY trajectory_id
)
SELECT scope.trajectory_id,
    coalesce(opinion.reward, said.reward, step.reward) AS reward,
    opinion.quality,
    coalesce(opinion.trainable = 1, step.trainable, FALSE) AS trainable,
    opinion.correct = 1 AS correct,
    coalesce(opinion.tags_json, '[]') AS tags_json,
    coalesce(opinion.n_notes, 0)::INTEGER AS n_notes
FROM scope
LEFT JOIN said USING (trajectory_id)
LEFT JOIN step USING (trajectory_id)
LEFT JOIN trajectory_opinions opinion ON opinion.trajectory_id = scope.trajectory_id
"""

_COLUMNS: dict[str, tuple[str, ...]] = {
    "reward": ("reward",),
    "quality": ("quality",),
    "trainable": ("trainable",),
    "correct": ("correct",),
    "note": ("n_notes",),
    "tag": ("tags_json",),
}
"""Kind of opinion -> the columns it changes; others (corrections) change none."""

_JUDGED = frozenset({"reward", "correct"})
"""Kinds that are looked at together where a trajectory or its group is judged."""

_OF_STEPS = frozenset({"reward", "trainable"})
"""Kinds whose opinions on steps reach the trajectory."""


def relabel(cursor: Cursor, action_id: int) -> None:
    """Bring the state in line after an action was made, undone or redone.

    A label is one of many statements' worth of planning, which costs more than its rows: only those needed run.
    """
    cursor.execute(_TOUCHED, [action_id])
    found = cursor.execute(
        "SELECT kind, bool_or(step_id IS NULL), bool_or(step_id IS NOT NULL) FROM touched GROUP BY kind"
    ).fetchall()
    kinds = {kind for kind, _, _ in found}
    columns = {name for kind in kinds for name in _COLUMNS.get(kind, ())}
    if not columns:
        return
    of_trajectories = any(whole or kind in _OF_STEPS for kind, whole, _ in found)
    of_steps = any(step or kind == "trainable" for kind, _, step in found)
    cursor.execute(_SCOPE)
    cursor.execute(_TARGETS)
    cursor.execute(_LIVE, [sorted(kinds | _JUDGED if kinds & _JUDGED else kinds)])
    if of_trajectories:
        trajectory_opinions(cursor)
    if of_steps:
        step_opinions(cursor)
        cursor.execute(_effective_steps(columns))
        cursor.execute(update_steps(sorted(columns)))
    if not of_trajectories:
        return
    cursor.execute(_TRAJECTORIES)
    cursor.execute(_update_trajectories(sorted(columns)))
    if kinds & _JUDGED:
        note_groups(cursor)
        judge(cursor)


def _effective_steps(columns: set[str]) -> str:
    names = sorted(columns)
    values = ", ".join(f"{_OF_STEP[name]} AS {name}" for name in names)
    joins = " ".join(_JOINS[name] for name in names if name in _JOINS)
    return (
        f"CREATE OR REPLACE TEMP TABLE effective AS SELECT s.step_id, {values}"
        " FROM (FROM step_state SEMI JOIN target USING (step_id)) s"
        f" LEFT JOIN step_opinions opinion ON opinion.step_id = s.step_id {joins}"
    )


def _update_trajectories(columns: list[str]) -> str:
    assignments = ", ".join(f"{name} = e.{name}" for name in columns)
    changed = " OR ".join(f"t.{name} IS DISTINCT FROM e.{name}" for name in columns)
    return (
        f"UPDATE trajectory_state t SET {assignments} FROM effective_trajectories e"
        f" WHERE t.trajectory_id = e.trajectory_id AND ({changed})"
    )
