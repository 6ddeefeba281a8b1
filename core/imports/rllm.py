"""Imports the SQLite trace store of rLLM's model gateway, with token ids and log-probs if the engine returned them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

from core.imports.base import ConvertedRecord, Format, Problem, ReadResult, convert_record, finished, objects, text
from core.imports.bounds import MAX_LINE
from core.tokens import extract_tokens

NAME = "rllm"
SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed", "stop", "n")
# Ordered by session, so that the last trace of each is known. Within a session by timestamp: the gateway writes traces
# in the background, so the order of rows can differ.
_TRACES = """
SELECT s.session_id, t.trace_id, t.data FROM traces t JOIN trace_sessions s USING (trace_id)
ORDER BY s.session_id, CASE WHEN json_valid(t.data) THEN json_extract(t.data, '$.timestamp') END, s.created_at, t.rowid
"""


def read(path: Path) -> Iterator[ReadResult]:
    """Read the traces, session by session. The file is opened read-only and may be in use."""
    with closing(_opened(path)) as connection:
        if not _has_tables(connection):
            yield Problem(path.name, None, "the tables traces and trace_sessions are missing")
            return
        rows = iter(connection.execute(_TRACES))
        row = next(rows, None)
        index = 0
        while row is not None:
            following = next(rows, None)
            last = following is None or following[0] != row[0]
            result = _trace(f"{path.name}:{row[1]}", row[0], index, last, row[2])
            yield result
            index = 0 if last else index + (len(result.steps) if isinstance(result, ConvertedRecord) else 1)
            row = following


def _trace(where: str, session: str, index: int, last: bool, data: str) -> ReadResult:
    try:
        record = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        return Problem(where, "data", f"not JSON: {error}")
    return convert_record(where, record, lambda: ConvertedRecord(where, _steps(session, index, last, record)))


def _steps(session: str, index: int, last: bool, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A step for each choice. The trace's columns describe the first; the others are in the raw response."""
    request, response = record.get("raw_request") or {}, record.get("raw_response") or {}
    common = _common(session, record)
    choices = response.get("choices") or []
    if not choices:
        steps = [{**common, "step_index": index, **_columns(record), **_mixed(request)}]
    else:
        n_each = max(len(choices) // len(_prompts(request)), 1)
        steps = [
            {**common, "step_index": index + place, **_choice(session, record, place, place // n_each)}
            for place in range(len(choices))
        ]
    if last:
        for step in {step.get("trajectory_uid", session): step for step in steps}.values():
            step["is_last"] = True
    return [finished(step, NAME) for step in steps]


def _common(session: str, record: Mapping[str, Any]) -> dict[str, Any]:
    request, response = record.get("raw_request") or {}, record.get("raw_response") or {}
    metadata = record.get("metadata") or {}
    return {
        "trajectory_uid": session,
        "created_at": record.get("timestamp") or None,
        "latency_s": (record.get("latency_ms") or 0.0) / 1000.0 or None,
        "model": text(record, "model"),
        "messages": objects(record.get("messages"), "messages") or None,
        "tools": objects(request.get("tools"), "raw_request.tools"),
        "sampling": {name: request[name] for name in SAMPLING if request.get(name) is not None} or None,
        "policy_version": record.get("weight_version"),
        "response_id": text(response, "id"),
        "metadata": {**metadata, "trace_id": record.get("trace_id")},
    }


def _columns(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the first choice, from the trace's columns."""
    response_ids, logprobs = record.get("completion_token_ids") or None, record.get("logprobs") or None
    return {
        "prompt_ids": record.get("prompt_token_ids") or None,
        "response_message": record.get("response_message") or None,
        "response_ids": response_ids,
        "response_logprobs": logprobs,
        "token_source": "engine" if response_ids else "none",
        "mismatch": _mismatch(response_ids, logprobs),
        "finish_reason": text(record, "finish_reason"),
    }


def _mixed(request: Mapping[str, Any]) -> dict[str, Any]:
    """A mismatch for streams with several choices: the trace has their chunks in one list without choice indices."""
    n = request.get("n")
    n_choices = (n if isinstance(n, int) else 1) * len(_prompts(request))
    return {"mismatch": f"a stream of {n_choices} choices, which the log does not separate"} if n_choices > 1 else {}


def _choice(session: str, record: Mapping[str, Any], place: int, prompt: int) -> dict[str, Any]:
    """The step of a choice in the raw response, with its prompt."""
    request, response = record.get("raw_request") or {}, record["raw_response"]
    choice = response["choices"][place]
    dialect = "chat" if isinstance(choice.get("message"), Mapping) else "completions"
    step = _columns(record) if place == 0 else {}
    tokens = extract_tokens(response, place, dialect, echoed=request.get("echo") is True)
    if tokens.response_ids is not None or place:
        step |= {
            "response_ids": tokens.response_ids,
            "response_logprobs": tokens.response_logprobs if tokens.response_ids is not None else None,
            "token_source": tokens.token_source,
            "mismatch": tokens.mismatch,
        }
    if tokens.prompt_ids is not None:
        step["prompt_ids"] = tokens.prompt_ids
    elif prompt == 0:
        step["prompt_ids"] = record.get("prompt_token_ids") or None
    step["response_message"] = choice.get("message")
    step["finish_reason"] = text(choice, "finish_reason")
    if dialect == "completions":
        prompt_text, answer = _prompts(request)[prompt], choice.get("text")
        if isinstance(prompt_text, str):
            step["messages"] = [{"role": "user", "content": prompt_text}]
            if request.get("echo") is True and isinstance(answer, str):
                answer = answer.removeprefix(prompt_text)
        step["response_message"] = {"role": "assistant", "content": answer} if isinstance(answer, str) else None
    if prompt:
        # As in the gateway: each prompt of a call is a separate trajectory.
        step["trajectory_uid"] = f"{session}.prompt{prompt}"
    return step


def _prompts(request: Mapping[str, Any]) -> Sequence[Any]:
    """The prompts of a completions call; for other calls, a list with the single prompt."""
    prompt = request.get("prompt")
    several = isinstance(prompt, list) and bool(prompt) and not all(isinstance(token, int) for token in prompt)
    return prompt if isinstance(prompt, list) and several else [prompt]


def _mismatch(response_ids: Sequence[int] | None, logprobs: Sequence[float] | None) -> str | None:
    """The mismatch of ids and log-probs, if any: rLLM drops log-probs that are null, so the lengths may differ."""
    if logprobs is None or len(logprobs) == len(response_ids or ()):
        return None
    return f"{len(response_ids or ())} response ids, {len(logprobs)} log-probs"


def _recognises(path: Path, first: Any) -> bool:
    with path.open("rb") as stream:
        if stream.read(16) != b"SQLite format 3\x00":
            return False
    with closing(_opened(path)) as connection:
        return _has_tables(connection)


def _opened(path: Path) -> sqlite3.Connection:
    """Open the file read-only. Its schema can't call functions with side effects, and cells are limited in size."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE)
    return connection


def _has_tables(connection: sqlite3.Connection) -> bool:
    """Whether both names are tables. Views are refused: their query might never end."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return {"traces", "trace_sessions"} <= tables


FORMAT = Format(NAME, "rLLM model gateway traces (SQLite)", _recognises, read)
