"""Backfill of ``step_findings`` for steps that are already stored: after an update, and on a rebuild."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from core.pool.state.findings import CallFindings, find_in_call, findings_table
from core.pool.store.content import decode
from core.pool.store.database import Cursor, registered

CHUNK = 20_000
"""Steps read at a time: bounds memory."""

_CALLS = """
SELECT c.step_id, c.trajectory_id, c.status, c.finish_reason, m.new_message_ids, m.response_message_id, m.tools_id,
    (c.identity_source = 'inferred' AND json_exists(c.metadata, '$.uncertain')) AS uncertain,
    CASE WHEN m.response_message_id IS NULL THEN k.response_ids END AS response_ids
FROM (FROM steps WHERE step_id BETWEEN $first AND $last AND step_id NOT IN (SELECT step_id FROM step_findings)) c
LEFT JOIN (FROM step_messages WHERE step_id BETWEEN $first AND $last) m ON m.step_id = c.step_id
LEFT JOIN (FROM step_tokens WHERE step_id BETWEEN $first AND $last) k ON k.step_id = c.step_id
ORDER BY c.step_id
"""
# With the bounds, DuckDB reads only the rows between: messages are many gigabytes.
_BODIES = """
SELECT message_id, body FROM messages
WHERE message_id BETWEEN $first AND $last AND message_id IN (SELECT message_id FROM wanted_messages)
"""


def unobserved(cursor: Cursor) -> int:
    """The number of steps without a row in ``step_findings``."""
    n = cursor.execute("SELECT (SELECT count(*) FROM steps) - (SELECT count(*) FROM step_findings)").fetchall()
    return int(n[0][0])


def fill_findings(cursor: Cursor) -> None:
    """Fill ``step_findings`` for every step that has no row there."""
    last = cursor.execute("SELECT coalesce(max(step_id), 0) FROM steps").fetchall()[0][0]
    tools: dict[int, Any] = {}
    for first in range(0, last + 1, CHUNK):
        _observe(cursor, first, first + CHUNK - 1, tools)


def _observe(cursor: Cursor, first: int, last: int, tools: dict[int, Any]) -> None:
    table = cursor.sql(_CALLS, params={"first": first, "last": last}).to_arrow_table()
    if not table.num_rows:
        return
    calls = table.to_pydict()
    missing = {number for number in calls["tools_id"] if number is not None} - set(tools)
    tools |= {number: decode(body) for number, body in _bodies(cursor, missing).items()}
    wanted = {number for ids in calls["new_message_ids"] for number in ids or ()}
    wanted |= {number for number in calls["response_message_id"] if number is not None}
    bodies = _bodies(cursor, wanted)
    seen: list[CallFindings] = []
    for place, ids in enumerate(calls["new_message_ids"]):
        answer_id, response = calls["response_message_id"][place], calls["response_ids"][place]
        brought = (bodies[number] for number in ids or ())
        seen.append(
            find_in_call(
                None if answer_id is None else decode(bodies[answer_id]),
                [decode(body) for body in brought if '"role":"tool"' in body or '"role":"function"' in body],
                tools.get(calls["tools_id"][place]),
                status=calls["status"][place],
                finish_reason=calls["finish_reason"][place],
                response=None if response is None else np.asarray(response, np.int32).tobytes(),
                uncertain=calls["uncertain"][place],
            )
        )
    rows = findings_table(table["step_id"].combine_chunks(), table["trajectory_id"].combine_chunks(), seen)
    with registered(cursor, new_findings=rows):
        cursor.execute("INSERT INTO step_findings BY NAME SELECT * FROM new_findings")


def _bodies(cursor: Cursor, ids: set[int]) -> dict[int, str]:
    if not ids:
        return {}
    wanted = pa.table({"message_id": pa.array(sorted(ids), pa.int64())})
    with registered(cursor, wanted_messages=wanted):
        return dict(cursor.execute(_BODIES, {"first": min(ids), "last": max(ids)}).fetchall())
