"""Observing the calls that a pool already holds: after an update, and on a rebuild."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from core.pool.content import decode
from core.pool.database import Cursor, registered
from core.pool.findings import Observed, findings_table, observe

CHUNK = 20_000
"""Steps read at a time: bounds memory."""

_CALLS = """
WITH call AS (
    SELECT step_id, trajectory_id, status, finish_reason FROM steps WHERE step_id BETWEEN ? AND ?
        AND step_id NOT IN (SELECT step_id FROM step_findings)
), brought AS (
    SELECT m.step_id, list(b.body ORDER BY m.place) AS bodies
    FROM (
        SELECT step_id, unnest(new_message_ids) AS message_id, generate_subscripts(new_message_ids, 1) AS place
        FROM step_messages WHERE step_id BETWEEN ? AND ?
    ) m JOIN messages b USING (message_id)
    WHERE b.body LIKE '%"role":"tool"%' OR b.body LIKE '%"role":"function"%'
    GROUP BY m.step_id
)
SELECT c.step_id, c.trajectory_id, c.status, c.finish_reason, answer.body AS answer, brought.bodies,
    m.tools_id, tools.body AS tools, k.response_ids
FROM call c
LEFT JOIN (FROM step_messages WHERE step_id BETWEEN ? AND ?) m ON m.step_id = c.step_id
LEFT JOIN (FROM step_tokens WHERE step_id BETWEEN ? AND ?) k ON k.step_id = c.step_id
LEFT JOIN brought ON brought.step_id = c.step_id
LEFT JOIN messages answer ON answer.message_id = m.response_message_id
LEFT JOIN messages tools ON tools.message_id = m.tools_id
ORDER BY c.step_id
"""


def unobserved(cursor: Cursor) -> int:
    """Steps that nothing was observed of yet."""
    n = cursor.execute("SELECT (SELECT count(*) FROM steps) - (SELECT count(*) FROM step_findings)").fetchall()
    return int(n[0][0])


def observe_all(cursor: Cursor) -> None:
    """Fill ``step_findings`` for every step that has no row there."""
    last = cursor.execute("SELECT coalesce(max(step_id), 0) FROM steps").fetchall()[0][0]
    for first in range(0, last + 1, CHUNK):
        _observe(cursor, first, first + CHUNK - 1)


def _observe(cursor: Cursor, first: int, last: int) -> None:
    table = cursor.sql(_CALLS, params=[first, last] * 4).to_arrow_table()
    if not table.num_rows:
        return
    calls = {name: table[name].combine_chunks() for name in table.column_names}
    tools_of = _Decoded()
    seen: list[Observed] = []
    responses = calls["response_ids"]
    offsets, ids = responses.offsets.to_numpy(), responses.values.to_numpy(zero_copy_only=False).astype("int32")
    known = responses.is_valid().to_pylist()
    for place in range(table.num_rows):
        bodies = calls["bodies"][place].as_py()
        response = ids[offsets[place] : offsets[place + 1]].tobytes() if known[place] else None
        seen.append(
            observe(
                decode(calls["answer"][place].as_py()),
                [decode(body) for body in bodies or ()],
                tools_of.get(calls["tools_id"][place].as_py(), calls["tools"][place]),
                status=calls["status"][place].as_py(),
                finish_reason=calls["finish_reason"][place].as_py(),
                response=response,
            )
        )
    with registered(cursor, new_findings=findings_table(calls["step_id"], calls["trajectory_id"], seen)):
        cursor.execute("INSERT INTO step_findings BY NAME SELECT * FROM new_findings")


class _Decoded:
    """Tool lists by id: thousands of steps are offered the same."""

    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

    def get(self, number: int | None, body: pa.Scalar) -> Any:
        if number is None:
            return None
        if number not in self._known:
            self._known[number] = decode(body.as_py())
        return self._known[number]
