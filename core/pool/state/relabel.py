"""Applies labels to the effective state of the labelled steps only, so that labelling a million steps is quick.

The rules are those of ``core.pool.state.derive``. Values derived from facts are already in the state.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.pool.state.derive import derive_group_state, update_steps
from core.pool.state.sharedsql import trainable_sql
from core.pool.state.workspace import Workspace
from core.pool.store.database import Cursor

_OF_STEP: dict[str, str] = {
    "reward": "coalesce(opinion.reward, f.reward)",
    "quality": "opinion.quality",
    "trainable": trainable_sql(kind="s.call_kind", status="s.status", mismatch="s.mismatch", bits="s.finding_bits"),
    "correct": "opinion.correct = 1",
    "tags_json": "coalesce(opinion.tags_json, '[]')",
    "n_notes": "coalesce(opinion.n_notes, 0)::INTEGER",
}
_JOINS: dict[str, str] = {
    "reward": "JOIN steps f ON f.step_id = s.step_id",
    "trainable": "LEFT JOIN trajectory_opinions whole ON whole.trajectory_id = s.trajectory_id",
}
_TRAJECTORIES = """
WITH reported AS (
    SELECT trajectory_id, arg_max(reward, event_id) AS reward
    FROM trajectory_events SEMI JOIN scope USING (trajectory_id) GROUP BY trajectory_id
), step AS (
    SELECT trajectory_id, sum(reward ORDER BY step_id) FILTER (reward IS NOT NULL) AS reward,
        bool_or(trainable) AS trainable
    FROM step_state SEMI JOIN scope USING (trajectory_id) GROUP BY trajectory_id
)
SELECT scope.trajectory_id,
    coalesce(opinion.reward, reported.reward, step.reward) AS reward,
    opinion.quality,
    coalesce(opinion.trainable = 1, step.trainable, FALSE) AS trainable,
    opinion.correct = 1 AS correct,
    coalesce(opinion.tags_json, '[]') AS tags_json,
    coalesce(opinion.n_notes, 0)::INTEGER AS n_notes
FROM scope
LEFT JOIN reported USING (trajectory_id)
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
"""Kind of opinion -> the columns it changes; others (corrections, edits) change none."""

_GROUP_KINDS = frozenset({"reward", "correct"})
"""Kinds whose values are derived together for a trajectory or its group."""

_OF_STEPS = frozenset({"reward", "trainable"})
"""Kinds whose labels on steps affect the trajectory."""


def relabel(cursor: Cursor, action_ids: Sequence[int]) -> None:
    """Bring the state in line after actions were made, undone or redone.

    A label is one of many statements' worth of planning, which costs more than its rows: only those needed run.
    """
    work = Workspace(cursor)
    touched = work.touched_by(action_ids)
    kinds = {kind for kind, _, _ in touched}
    columns = {name for kind in kinds for name in _COLUMNS.get(kind, ())}
    if not columns:
        return
    of_trajectories = any(of_trajectory or kind in _OF_STEPS for kind, of_trajectory, _ in touched)
    of_steps = any(step or kind == "trainable" for kind, _, step in touched)
    work.scope_to_touched()
    work.live_of_targets(kinds | _GROUP_KINDS if kinds & _GROUP_KINDS else kinds)
    if of_trajectories:
        work.trajectory_opinions()
    if of_steps:
        work.step_opinions()
        work.fill("effective", _effective_steps(columns))
        cursor.execute(update_steps(sorted(columns)))
    if not of_trajectories:
        return
    work.fill("effective_trajectories", _TRAJECTORIES)
    cursor.execute(_update_trajectories(sorted(columns)))
    if kinds & _GROUP_KINDS:
        work.groups_of_scope()
        derive_group_state(work)


def _effective_steps(columns: set[str]) -> str:
    names = sorted(columns)
    values = ", ".join(f"{_OF_STEP[name]} AS {name}" for name in names)
    joins = " ".join(_JOINS[name] for name in names if name in _JOINS)
    return (
        f"SELECT s.step_id, {values}"
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
