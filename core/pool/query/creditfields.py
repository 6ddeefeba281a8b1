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
    "logprobs": "k.response_logprobs::DOUBLE[] AS logprobs",
    "teacher_logprobs": "TRY_CAST(json_extract(f.metadata, '$.teacher_logprobs') AS DOUBLE[]) AS teacher_logprobs",
}
_HASHES = "SELECT step_id, facts_hash::VARCHAR AS facts_hash FROM steps"
DENSE = 8
"""Up to this many steps of the pool per wanted one, a range is read instead of joined."""
HASHES_AT_ONCE = 1_000_000
_JOINS = {
    "observation": " LEFT JOIN step_messages m ON m.step_id = f.step_id"
    " LEFT JOIN messages seen ON seen.message_id = m.new_message_ids[-1]",
    "link": " LEFT JOIN steps before ON before.step_id = f.parent_step_id",
    "logprobs": " LEFT JOIN step_tokens k ON k.step_id = f.step_id",
}


def credit_fields(cursor: Cursor, step_uids: Sequence[str] | pa.Array, fields: Collection[str]) -> pa.Table:
    """One row per step in the order given, a column per field, null where a step has none.

    ``baseline`` also gives ``greedy``; ``link`` gives
    ``parent_step_uid``, ``n_shared_tokens``, ``transition`` and ``source``. Steps that don't exist give nulls.
    """
    for name in fields:
        if name not in _FIELDS:
            raise InvalidInput(f"No field {name!r}.", field="fields", hint=f"One of {', '.join(_FIELDS)}.")
    wanted = pa.table({"uid": step_uids, "place": np.arange(len(step_uids))})
    return _read(cursor, wanted, list(fields))


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
    parts = [_hashes_of(cursor, ids[low : low + HASHES_AT_ONCE]) for low in range(0, len(ids), HASHES_AT_ONCE)]
    hashes = pa.chunked_array(parts, pa.string())
    if order is None:
        return hashes
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return pa.chunked_array([hashes.combine_chunks().take(pa.array(place))])


def _hashes_of(cursor: Cursor, step_ids: np.ndarray) -> pa.StringArray:
    """The same for at least one step, ids ascending."""
    low, high = int(step_ids[0]), int(step_ids[-1])
    # A plan takes most steps of a range: reading all of it and picking from an array is faster than a join.
    if high - low < DENSE * len(step_ids):
        hashes = arrow(cursor, f"{_HASHES} WHERE step_id BETWEEN ? AND ?", [low, high])
    else:
        with registered(cursor, wanted_hashes=pa.table({"step_id": step_ids})):
            hashes = arrow(cursor, f"{_HASHES} SEMI JOIN wanted_hashes USING (step_id)")
    place = np.zeros(high - low + 1, np.int64)
    place[hashes["step_id"].to_numpy() - low] = np.arange(len(hashes))
    return hashes["facts_hash"].combine_chunks().take(pa.array(place[step_ids - low]))


def _read(cursor: Cursor, wanted: pa.Table, fields: list[str]) -> pa.Table:
    columns = ", ".join(_FIELDS[name] for name in fields) or "NULL AS nothing"
    joins = "".join(_JOINS.get(name, "") for name in fields)
    with registered(cursor, wanted_credit=wanted):
        return arrow(
            cursor,
            f"SELECT {columns} FROM wanted_credit w LEFT JOIN steps f ON f.step_uid = w.uid{joins} ORDER BY w.place",
        )
