"""A step's life cycle: when it was generated, captured, ingested, scored, curated, ready, leased and consumed."""

from __future__ import annotations

from typing import Any

from core.errors import NotFound
from core.pool.state.sharedsql import READY, UNDONE, settled_sql
from core.pool.store.database import Cursor, rows, seconds

STAGES: dict[str, str] = {
    "generated": "The call started",
    "captured": "Its answer was complete and on disk, before the last byte was sent to the agent",
    "ingested": "It was written to the pool",
    "scored": "It first had a reward in effect",
    "completed": "Its trajectory was closed",
    "curated": "It or its trajectory was last labelled",
    "ready": READY,
    "leased": "It was first leased to a trainer",
    "consumed": "A trainer first acknowledged it",
}
"""Stage -> its description, in the usual order."""

_FACTS = f"""
SELECT s.step_id, s.trajectory_id, s.created_at, s.latency_s, f.ingested_at, f.reward AS own_reward, s.reward,
    t.reward AS trajectory_reward, t.complete, s.trainable AND {settled_sql("t")} AS ready, f.is_last
FROM (FROM step_state WHERE step_uid = ?) s JOIN steps f USING (step_id)
JOIN trajectory_state t ON t.trajectory_id = s.trajectory_id
"""
_EVENTS = """
SELECT min(created_at) FILTER (kind = 'complete') AS completed, min(created_at) FILTER (reward IS NOT NULL) AS scored
FROM trajectory_events WHERE trajectory_id = ?
"""
_CLOSED = "SELECT min(ingested_at) FROM steps WHERE trajectory_id = ? AND is_last"
_REWARDS = "SELECT min(ingested_at) FROM steps WHERE trajectory_id = ? AND reward IS NOT NULL"
_CURATION = f"""
SELECT min(created_at) FILTER (kind = 'reward' AND value_number IS NOT NULL) AS scored,
    max(created_at) FILTER (kind <> 'reward') AS curated
FROM annotations WHERE trajectory_id = ? AND (step_id IS NULL OR step_id = ?) AND action_id NOT IN (
    {UNDONE}
)
"""
_TAKEN = """
SELECT min(b.leased_at) AS leased, min(b.finished_at) FILTER (b.state = 'acked') AS consumed
FROM batch_steps s JOIN batches b USING (batch_uid) WHERE s.step_uid = ?
"""


def read_lifecycle(cursor: Cursor, step_uid: str) -> dict[str, float | None]:
    """When a step reached each of ``STAGES``, UTC seconds; None: not yet, or not known.

    Rewards count by their first time, labels by their last; undone labels don't count.
    NotFound when there is no such step.
    """
    facts = rows(cursor, _FACTS, [step_uid])
    if not facts:
        raise NotFound(f"No step {step_uid!r}.", field="step_uid")
    fact = facts[0]
    owner = fact["trajectory_id"]
    event = rows(cursor, _EVENTS, [owner])[0]
    labels = rows(cursor, _CURATION, [owner, fact["step_id"]])[0]
    taken = rows(cursor, _TAKEN, [step_uid])[0]
    closed = cursor.execute(_CLOSED, [owner]).fetchall()[0][0]
    rewarded = cursor.execute(_REWARDS, [owner]).fetchall()[0][0]
    known = fact["reward"] is not None or fact["trajectory_reward"] is not None
    scored = _first(event["scored"], labels["scored"], rewarded) if known else None
    completed = _first(event["completed"], closed) if fact["complete"] else None
    ingested = seconds(fact["ingested_at"])
    ready = None
    if fact["ready"] and completed is not None and scored is not None:
        ready = max(moment for moment in (completed, scored, ingested) if moment is not None)
    began = seconds(fact["created_at"])
    ended = None if fact["latency_s"] is None or began is None else began + fact["latency_s"]
    at = {
        "generated": began,
        "captured": ended,
        "ingested": ingested,
        "scored": scored,
        "completed": completed,
        "curated": seconds(labels["curated"]),
        "ready": ready,
        "leased": seconds(taken["leased"]),
        "consumed": seconds(taken["consumed"]),
    }
    return {stage: at[stage] for stage in STAGES}


def _first(*moments: Any) -> float | None:
    known = [one for one in (seconds(moment) for moment in moments) if one is not None]
    return min(known) if known else None
