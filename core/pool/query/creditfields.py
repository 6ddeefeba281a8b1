"""Step fields for estimators: producers' metadata, newest messages, log-probs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from core.errors import InvalidInput
from core.pool.store.database import Cursor, arrow, registered

_FIELDS = {
    "value": "TRY_CAST(json_extract_string(f.metadata, '$.value') AS DOUBLE) AS value",
    "token_values": "TRY_CAST(json_extract(f.metadata, '$.token_values') AS DOUBLE[]) AS token_values",
    "anchor": "CAST(json_extract(f.metadata, '$.anchor') AS VARCHAR) AS anchor",
    "observation": "seen.body AS observation",
    "baseline": "TRY_CAST(json_extract_string(f.metadata, '$.reward_baseline') AS DOUBLE) AS baseline,"
    " coalesce(TRY_CAST(json_extract_string(f.metadata, '$.greedy') AS BOOLEAN),"
    " TRY_CAST(json_extract_string(f.sampling, '$.temperature') AS DOUBLE) = 0, FALSE) AS greedy",
    "temperature": "TRY_CAST(json_extract_string(f.sampling, '$.temperature') AS DOUBLE) AS temperature",
    "finish_reason": "f.finish_reason AS finish_reason",
    "tokenizer_hash": "f.tokenizer_hash AS tokenizer_hash",
    "link": "before.step_uid AS parent_step_uid, f.n_shared_tokens AS n_shared_tokens, f.transition AS transition,"
    " f.source AS source",
    "content": "f.facts_hash::VARCHAR AS content",
    "logprobs": "k.response_logprobs::DOUBLE[] AS logprobs",
    "teacher_logprobs": "TRY_CAST(json_extract(f.metadata, '$.teacher_logprobs') AS DOUBLE[]) AS teacher_logprobs",
}
_JOINS = {
    "observation": " LEFT JOIN step_messages m ON m.step_id = f.step_id"
    " LEFT JOIN messages seen ON seen.message_id = m.new_message_ids[-1]",
    "link": " LEFT JOIN steps before ON before.step_id = f.parent_step_id",
    "logprobs": " LEFT JOIN step_tokens k ON k.step_id = f.step_id",
}


def credit_fields(cursor: Cursor, step_uids: Sequence[str] | pa.Array, fields: Collection[str]) -> pa.Table:
    """One row per step in the order given, a column per field, null where a step has none.

    ``content`` is a hash of the facts that an export contains. ``baseline`` also gives ``greedy``; ``link`` gives
    ``parent_step_uid``, ``n_shared_tokens``, ``transition`` and ``source``. Steps that don't exist give nulls.
    """
    for name in fields:
        if name not in _FIELDS:
            raise InvalidInput(f"No field {name!r}.", field="fields", hint=f"One of {', '.join(_FIELDS)}.")
    wanted = pa.table({"uid": step_uids, "place": np.arange(len(step_uids))})
    return _read(cursor, wanted, list(fields))


def _read(cursor: Cursor, wanted: pa.Table, fields: list[str]) -> pa.Table:
    columns = ", ".join(_FIELDS[name] for name in fields) or "NULL AS nothing"
    joins = "".join(_JOINS.get(name, "") for name in fields)
    with registered(cursor, wanted_credit=wanted):
        return arrow(
            cursor,
            f"SELECT {columns} FROM wanted_credit w LEFT JOIN steps f ON f.step_uid = w.uid{joins} ORDER BY w.place",
        )
