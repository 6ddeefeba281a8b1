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
    "link": "f.parent_step_id AS parent_step_id, f.n_shared_tokens AS n_shared_tokens, f.transition AS transition,"
    " f.source AS source",
    "logprobs": "k.response_logprobs::DOUBLE[] AS logprobs",
    "teacher_logprobs": "TRY_CAST(json_extract(f.metadata, '$.teacher_logprobs') AS DOUBLE[]) AS teacher_logprobs",
}
_HASHES = "SELECT f.step_id AS row_id, f.facts_hash::VARCHAR AS facts_hash FROM steps f"
DENSE = 8
"""Up to this many steps of the pool per wanted one, a range is read instead of joined."""
HASHES_AT_ONCE = 1_000_000
_JOINS = {
    "observation": " LEFT JOIN step_messages m ON m.step_id = f.step_id"
    " LEFT JOIN messages seen ON seen.message_id = m.new_message_ids[-1]",
    "logprobs": " LEFT JOIN step_tokens k ON k.step_id = f.step_id",
}


def credit_fields(cursor: Cursor, step_uids: Sequence[str] | pa.Array, fields: Collection[str]) -> pa.Table:
    """One row per step in the order given, a column per field, null where a step has none.

    ``baseline`` also gives ``greedy``; ``link`` gives
    ``parent_step_id``, ``n_shared_tokens``, ``transition`` and ``source``. Steps that don't exist give nulls.
    """
    _check(fields)
    wanted = pa.table({"uid": step_uids, "place": np.arange(len(step_uids))})
    return _read(cursor, wanted, list(fields))


def credit_fields_by_id(cursor: Cursor, step_ids: np.ndarray, fields: Collection[str]) -> pa.Table:
    """``credit_fields`` of steps that exist, by ``step_id`` (int64 [n], in any order): no name is looked up."""
    _check(fields)
    columns = ", ".join(_FIELDS[name] for name in fields) or "NULL AS nothing"
    joins = "".join(_JOINS.get(name, "") for name in fields)
    return _by_id(cursor, f"SELECT f.step_id AS row_id, {columns} FROM steps f{joins}", "f.step_id", step_ids)


def _check(fields: Collection[str]) -> None:
    for name in fields:
        if name not in _FIELDS:
            raise InvalidInput(f"No field {name!r}.", field="fields", hint=f"One of {', '.join(_FIELDS)}.")


def _by_id(cursor: Cursor, sql: str, column: str, step_ids: np.ndarray) -> pa.Table:
    """The rows of a query, whose first column is ``row_id``, for these ids: one each, in the order given."""
    low, high = (int(step_ids.min()), int(step_ids.max())) if len(step_ids) else (0, 0)
    # A plan takes most steps of a range: reading all of it and picking from an array is faster than a join.
    if high - low < DENSE * len(step_ids):
        table = arrow(cursor, f"{sql} WHERE {column} BETWEEN ? AND ?", [low, high])
    else:
        with registered(cursor, wanted_rows=pa.table({"step_id": step_ids})):
            table = arrow(cursor, f"{sql} SEMI JOIN wanted_rows w ON w.step_id = {column}")
    ids = table["row_id"].to_numpy()
    table = table.drop_columns("row_id").combine_chunks()
    if np.array_equal(ids, step_ids):
        return table
    place = np.zeros(high - low + 1, np.int64)
    place[ids - low] = np.arange(len(ids))
    return table.take(pa.array(place[step_ids - low]))


def facts_hashes(cursor: Cursor, step_ids: np.ndarray) -> pa.ChunkedArray:
    """A hash per step of its facts that an export contains (``core.pool.store.append.FACTS_HASH``).

    Args:
        step_ids: int64 [n], steps that exist, in any order.

    Returns:
        string [n], in the order given; null for a step that went to the trash before hashes were stored and came back.
    """
    ascending = bool(np.all(step_ids[1:] > step_ids[:-1]))
    order = None if ascending else np.argsort(step_ids)
    ids = step_ids if order is None else step_ids[order]
    # A part at a time: a hash takes 40 bytes as text, and a part is held up to three times.
    parts = [
        _by_id(cursor, _HASHES, "f.step_id", ids[low : low + HASHES_AT_ONCE])["facts_hash"].combine_chunks()
        for low in range(0, len(ids), HASHES_AT_ONCE)
    ]
    hashes = pa.chunked_array(parts, pa.string())
    if order is None:
        return hashes
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return pa.chunked_array([hashes.combine_chunks().take(pa.array(place))])


def _read(cursor: Cursor, wanted: pa.Table, fields: list[str]) -> pa.Table:
    columns = ", ".join(_FIELDS[name] for name in fields) or "NULL AS nothing"
    joins = "".join(_JOINS.get(name, "") for name in fields)
    with registered(cursor, wanted_credit=wanted):
        return arrow(
            cursor,
            f"SELECT {columns} FROM wanted_credit w LEFT JOIN steps f ON f.step_uid = w.uid{joins} ORDER BY w.place",
        )
