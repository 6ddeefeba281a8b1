"""What estimators read of steps beside rewards: producers' metadata, newest messages, log-probs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from core.errors import InvalidInput
from core.pool.database import Cursor, Database, arrow, registered

_FIELDS = {
    "value": "TRY_CAST(json_extract_string(f.metadata, '$.value') AS DOUBLE) AS value",
    "token_values": "TRY_CAST(json_extract(f.metadata, '$.token_values') AS DOUBLE[]) AS token_values",
    "anchor": "CAST(json_extract(f.metadata, '$.anchor') AS VARCHAR) AS anchor",
    "observation": "seen.body AS observation",
    "baseline": "TRY_CAST(json_extract_string(f.metadata, '$.reward_baseline') AS DOUBLE) AS baseline,"
    " coalesce(TRY_CAST(json_extract_string(f.metadata, '$.greedy') AS BOOLEAN),"
    " TRY_CAST(json_extract_string(f.sampling, '$.temperature') AS DOUBLE) = 0, FALSE) AS greedy",
    "logprobs": "k.response_logprobs::DOUBLE[] AS logprobs",
    "teacher_logprobs": "TRY_CAST(json_extract(f.metadata, '$.teacher_logprobs') AS DOUBLE[]) AS teacher_logprobs",
}
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


def _read(cursor: Cursor, wanted: pa.Table, fields: list[str]) -> pa.Table:
    columns = ", ".join(_FIELDS[name] for name in fields) or "NULL AS nothing"
    joins = "".join(_JOINS.get(name, "") for name in fields)
    with registered(cursor, wanted_credit=wanted):
        return arrow(
            cursor,
            f"SELECT {columns} FROM wanted_credit w LEFT JOIN steps f ON f.step_uid = w.uid{joins} ORDER BY w.place",
        )
