"""The next free ids of tables."""

from __future__ import annotations

from core.pool.store.content import decode
from core.pool.store.database import Cursor, rows

_NEXT_IDS = """
SELECT
    (SELECT coalesce(max(step_id), 0) + 1 FROM steps) AS step_id,
    (SELECT coalesce(max(trajectory_id), 0) + 1 FROM trajectories) AS trajectory_id,
    (SELECT coalesce(max(message_id), 0) + 1 FROM messages) AS message_id,
    (SELECT coalesce(max(event_id), 0) + 1 FROM trajectory_events) AS event_id,
    (SELECT coalesce(max(annotation_id), 0) + 1 FROM annotations) AS annotation_id,
    (SELECT coalesce(max(action_id), 0) + 1 FROM actions) AS action_id,
    (SELECT coalesce(max(feedback_id), 0) + 1 FROM feedback) AS feedback_id
"""


def next_ids(cursor: Cursor) -> dict[str, int]:
    """Name -> the next id. Ids of deleted rows are not reused: the rows may be restored from the trash."""
    numbers = rows(cursor, _NEXT_IDS)[0]
    for (body,) in cursor.execute("SELECT next_ids FROM retention_runs WHERE next_ids IS NOT NULL").fetchall():
        for name, number in (decode(body) or {}).items():
            numbers[name] = max(numbers[name], number)
    return numbers
