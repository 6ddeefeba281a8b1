"""What estimators read of steps beside rewards: producers' metadata, newest messages, log-probs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow as pa

from core.errors import InvalidInput, NotFound
from core.pool.changes import NOTHING
from core.pool.database import Cursor, Database, arrow, registered, rows, timestamp

_FIELDS = {
    "value": "TRY_CAST(json_extract_string(f.metadata, '$.value') AS DOUBLE) AS value",
    "token_values": "TRY_CAST(json_extract(f.metadata, '$.token_values') AS DOUBLE[]) AS token_values",
    "anchor": "CAST(json_extract(f.metadata, '$.anchor') AS VARCHAR) AS anchor",
    "observation": "seen.body AS observation",
    "baseline": "TRY_CAST(json_extract_string(f.metadata, '$.reward_baseline') AS DOUBLE) AS baseline,"
    " coalesce(TRY_CAST(json_extract_string(f.metadata, '$.greedy') AS BOOLEAN),"
    " TRY_CAST(json_extract_string(f.sampling, '$.temperature') AS DOUBLE) = 0, FALSE) AS greedy",
    "temperature": "TRY_CAST(json_extract_string(f.sampling, '$.temperature') AS DOUBLE) AS temperature",
    "logprobs": "k.response_logprobs::DOUBLE[] AS logprobs",
    "teacher_logprobs": "TRY_CAST(json_extract(f.metadata, '$.teacher_logprobs') AS DOUBLE[]) AS teacher_logprobs",
}
_VALUES = """
SELECT v.value FROM wanted_values w
LEFT JOIN (
    SELECT step_uid, arg_max(value, (created_at, rowid)) AS value FROM step_values WHERE model = ? GROUP BY step_uid
) v ON v.step_uid = w.uid ORDER BY w.place
"""
_JOINS = {
    "observation": " LEFT JOIN step_messages m ON m.step_id = f.step_id"
    " LEFT JOIN messages seen ON seen.message_id = m.new_message_ids[-1]",
    "logprobs": " LEFT JOIN step_tokens k ON k.step_id = f.step_id",
}


class CreditFields:
    """The part of ``Pool`` that estimators' needs are read with."""

    _db: Database

    def credit_fields(self, step_uids: Sequence[str] | pa.Array, fields: Collection[str]) -> pa.Table:
        """One row per step in the order given, a column per field, null where a step has none.

        ``baseline`` also gives ``greedy``. Steps that don't exist give nulls.
        """
        for name in fields:
            if name not in _FIELDS:
                raise InvalidInput(f"No field {name!r}.", field="fields", hint=f"One of {', '.join(_FIELDS)}.")
        wanted = pa.table({"uid": step_uids, "place": pa.array(range(len(step_uids)), pa.int64())})
        with self._db.read() as cursor:
            return _read(cursor, wanted, list(fields))

    def store_values(self, model: str, values: pa.Table) -> int:
        """Keep a critic's values of steps: columns step_uid (string) and value (float64); returns how many.

        NotFound names a step that does not exist; nothing is stored then. A later value of the same critic counts.
        """
        table = values.select(["step_uid", "value"])
        with self._db.write(NOTHING) as cursor, registered(cursor, new_values=table):
            unknown = cursor.execute(
                "SELECT step_uid FROM new_values WHERE step_uid NOT IN (SELECT step_uid FROM steps) LIMIT 1"
            ).fetchall()
            if unknown:
                raise NotFound(f"No step {unknown[0][0]!r}.", field="step_uid")
            cursor.execute(
                "INSERT INTO step_values SELECT step_uid, ?, value, ? FROM new_values",
                [model, timestamp(self._db.clock())],
            )
        return len(table)

    def step_values(self, step_uids: Sequence[str] | pa.Array, model: str) -> pa.Array:
        """A critic's newest values of these steps, float64 [n], null where it gave none."""
        wanted = pa.table({"uid": step_uids, "place": pa.array(range(len(step_uids)), pa.int64())})
        with self._db.read() as cursor, registered(cursor, wanted_values=wanted):
            return arrow(cursor, _VALUES, [model])["value"].combine_chunks()

    def value_models(self) -> list[dict[str, Any]]:
        """Critics with stored values: ``{model, n_steps}``."""
        with self._db.read() as cursor:
            return rows(
                cursor,
                "SELECT model, count(DISTINCT step_uid) AS n_steps FROM step_values GROUP BY model ORDER BY model",
            )


def _read(cursor: Cursor, wanted: pa.Table, fields: list[str]) -> pa.Table:
    columns = ", ".join(_FIELDS[name] for name in fields) or "NULL AS nothing"
    joins = "".join(_JOINS.get(name, "") for name in fields)
    with registered(cursor, wanted_credit=wanted):
        return arrow(
            cursor,
            f"SELECT {columns} FROM wanted_credit w LEFT JOIN steps f ON f.step_uid = w.uid{joins} ORDER BY w.place",
        )
