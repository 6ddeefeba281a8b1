"""rLLM's model gateway: its SQLite trace store, with token ids and log-probs where its engine told them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from core.imports.base import Format, Found, Problem, Taken, finished, objects, taken, text

NAME = "rllm"
SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed", "stop", "n")
# The traces of a session lie together, so that one is known to be its last. They are written in the background, so
# their own time tells their order and not the rows'.
_TRACES = """
SELECT s.session_id, t.trace_id, t.data FROM traces t JOIN trace_sessions s USING (trace_id)
ORDER BY s.session_id, CASE WHEN json_valid(t.data) THEN json_extract(t.data, '$.timestamp') END, s.created_at, t.rowid
"""


def read(path: Path) -> Iterator[Found]:
    """Trace by trace, session by session; the file is opened read-only and may be in use."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        rows = iter(connection.execute(_TRACES))
        row = next(rows, None)
        index = 0
        while row is not None:
            following = next(rows, None)
            last = following is None or following[0] != row[0]
            yield _trace(f"{path.name}:{row[1]}", row[0], index, last, row[2])
            index = 0 if last else index + 1
            row = following


def _trace(where: str, session: str, index: int, last: bool, data: str) -> Found:
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return Problem(where, "data", f"not JSON: {error}")
    return taken(where, record, lambda: Taken(where, [finished(_step(session, index, last, record), NAME)]))


def _step(session: str, index: int, last: bool, record: Mapping[str, Any]) -> dict[str, Any]:
    request, response = record.get("raw_request") or {}, record.get("raw_response") or {}
    prompt_ids, response_ids = (record.get(name) or None for name in ("prompt_token_ids", "completion_token_ids"))
    logprobs = record.get("logprobs") or None
    mismatch = _mismatch(response_ids, logprobs)
    metadata = record.get("metadata") or {}
    return {
        "trajectory_uid": session,
        "step_index": index,
        "created_at": record.get("timestamp") or None,
        "latency_s": (record.get("latency_ms") or 0.0) / 1000.0 or None,
        "model": text(record, "model"),
        "messages": objects(record.get("messages"), "messages"),
        "response_message": record.get("response_message") or None,
        "tools": objects(request.get("tools"), "raw_request.tools"),
        "sampling": {name: request[name] for name in SAMPLING if request.get(name) is not None} or None,
        "prompt_ids": prompt_ids,
        "response_ids": response_ids,
        "response_logprobs": logprobs,
        "token_source": "engine" if response_ids else "none",
        "mismatch": mismatch,
        "finish_reason": text(record, "finish_reason"),
        "response_id": text(response, "id"),
        "is_last": last,
        "metadata": {**metadata, "trace_id": record.get("trace_id")},
    }


def _mismatch(response_ids: Sequence[int] | None, logprobs: Sequence[float] | None) -> str | None:
    """rLLM leaves out log-probs that the engine gave as null, so the lengths may differ."""
    if logprobs is None or len(logprobs) == len(response_ids or ()):
        return None
    return f"{len(response_ids or ())} response ids, {len(logprobs)} log-probs"


def _recognises(path: Path, first: Any) -> bool:
    with path.open("rb") as stream:
        if stream.read(16) != b"SQLite format 3\x00":
            return False
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return {"traces", "trace_sessions"} <= tables


FORMAT = Format(NAME, "rLLM model gateway traces (SQLite)", _recognises, read)
