"""Imports LiteLLM's logs: ``StandardLoggingPayload`` objects of its callbacks and its S3, GCS and file loggers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.imports.base import ConvertedRecord, Format, ReadResult, finished, number, objects, text
from core.imports.files import by_session
from core.tokens import extract_tokens

NAME = "litellm"
NEEDED = {"call_type", "messages", "response", "model_parameters", "startTime"}
KEPT = ("request_tags", "response_cost", "custom_llm_provider", "model_group", "end_user")


def read(path: Path) -> Iterator[ReadResult]:
    """Read a file. The calls of a session or trace become a trajectory, each choice of a call a step."""
    return by_session(path, lambda record: text(record, "session_id", "trace_id", "id"), _call)


def _call(record: Mapping[str, Any], session: str, index: int, last: bool) -> ConvertedRecord:
    kind = text(record, "call_type") or ""
    if "completion" not in kind:
        raise InvalidInput(f"calls of type {kind!r} are not imported", field="call_type")
    messages = objects(record.get("messages"), "messages")
    if messages is None:
        raise InvalidInput("the log has no messages: message logging was turned off in LiteLLM", field="messages")
    model_parameters = record.get("model_parameters") or {}
    parameters = {
        name: value for name, value in model_parameters.items() if name not in ("tools", "extra_body", "api_key")
    }
    response = record.get("response")
    failed = record.get("status") == "failure" or not isinstance(response, Mapping)
    started, ended = number(record, "startTime"), number(record, "endTime")
    common = {
        "trajectory_uid": session,
        "created_at": started,
        "latency_s": None if started is None or ended is None else max(0.0, ended - started),
        "model": text(record, "model"),
        "messages": messages,
        "tools": objects(model_parameters.get("tools"), "model_parameters.tools"),
        "sampling": parameters or None,
        "metadata": {name: record[name] for name in KEPT if record.get(name)},
    }
    if failed:
        error = text(record, "error_str") or "the call failed"
        step = {**common, "step_index": index, "status": "error", "error": error, "is_last": last}
        return ConvertedRecord("", [finished(step, NAME)])
    assert isinstance(response, Mapping)
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, Mapping) for choice in choices):
        raise InvalidInput("the response has no choices", field="response.choices")
    steps = [{**common, **_answer(response, place), "step_index": index + place} for place in range(len(choices))]
    steps[-1]["is_last"] = last
    return ConvertedRecord("", [finished(step, NAME) for step in steps])


def _answer(response: Mapping[str, Any], place: int) -> dict[str, Any]:
    choice = response["choices"][place]
    dialect = "chat" if isinstance(choice.get("message"), Mapping) else "completions"
    tokens = extract_tokens(response, place, dialect)
    message = choice.get("message") if dialect == "chat" else {"role": "assistant", "content": choice.get("text")}
    return {
        "response_message": {
            name: value for name, value in dict(message or {}).items() if value is not None or name == "content"
        },
        "finish_reason": text(choice, "finish_reason"),
        "response_id": text(response, "id"),
        "prompt_ids": tokens.prompt_ids,
        "response_ids": tokens.response_ids,
        "response_logprobs": tokens.response_logprobs if tokens.response_ids is not None else None,
        "token_source": tokens.token_source,
        "mismatch": tokens.mismatch,
    }


def _recognises(path: Path, first: Any) -> bool:
    return isinstance(first, Mapping) and first.keys() >= NEEDED


FORMAT = Format(NAME, "LiteLLM logs (StandardLoggingPayload, JSON lines)", _recognises, read)
