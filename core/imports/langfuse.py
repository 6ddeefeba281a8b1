"""Imports Langfuse exports: generations with input, output and usage, from its API or its bulk export."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from core.errors import InvalidInput
from core.imports.base import ConvertedRecord, Format, ReadResult, finished, objects
from core.imports.files import by_session

NAME = "langfuse"


def read(path: Path) -> Iterator[ReadResult]:
    """Read a file. A trace becomes a trajectory, each choice of a generation a step. Spans and events are skipped."""
    return by_session(path, _trace, _generation)


def _field(record: Mapping[str, Any], camel: str, snake: str) -> Any:
    """A field in either spelling: ``traceId`` in API responses, ``trace_id`` in bulk exports."""
    value = record.get(camel)
    return record.get(snake) if value is None else value


def _trace(record: Mapping[str, Any]) -> str | None:
    if record.get("type") != "GENERATION":
        return ""
    trace_id = _field(record, "traceId", "trace_id") or record.get("id")
    return trace_id if isinstance(trace_id, str) else None


def _generation(record: Mapping[str, Any], trace: str, index: int, last: bool) -> ConvertedRecord:
    if not trace:
        return ConvertedRecord("", [])
    messages, tools = _prompt(_parse_embedded_json(record.get("input")))
    started = _seconds(_field(record, "startTime", "start_time"))
    ended = _seconds(_field(record, "endTime", "end_time"))
    failed = record.get("level") == "ERROR"
    parameters = _parse_embedded_json(_field(record, "modelParameters", "model_parameters"))
    session = _field(record, "sessionId", "session_id")
    common = {
        "trajectory_uid": trace,
        "created_at": started,
        "latency_s": None if started is None or ended is None else max(0.0, ended - started),
        "model": _field(record, "model", "providedModelName"),
        "messages": messages,
        "tools": tools,
        "sampling": parameters if isinstance(parameters, dict) and parameters else None,
        "status": "error" if failed else None,
        "error": (_field(record, "statusMessage", "status_message") or "failed") if failed else None,
        "metadata": {
            "observation_id": record.get("id"),
            **({"session_id": session} if session else {}),
            **({"name": record["name"]} if record.get("name") else {}),
        },
    }
    answers = [None] if failed else _answers(_parse_embedded_json(record.get("output")))
    steps = [
        {**common, "response_message": answer, "step_index": index + k, "is_last": last and k == len(answers) - 1}
        for k, answer in enumerate(answers)
    ]
    return ConvertedRecord("", [finished(step, NAME) for step in steps])


def _parse_embedded_json(value: Any) -> Any:
    """Parse a text that looks like JSON, as some exports contain it; other values are unchanged."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _prompt(value: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Messages and tools, in any of the forms that Langfuse's integrations write."""
    if isinstance(value, Mapping) and "messages" in value:
        return objects(value["messages"], "input.messages") or [], objects(value.get("tools"), "input.tools")
    if isinstance(value, Mapping) and "role" in value:
        return [dict(value)], None
    if isinstance(value, str):
        return [{"role": "user", "content": value}], None
    messages = objects(value, "input")
    if not messages:
        raise InvalidInput("a generation needs its input: messages, or a text", field="input")
    return messages, None


def _answers(output: Any) -> list[dict[str, Any]]:
    """All choices of a call; the integrations write a list if there are several."""
    if isinstance(output, Mapping) and isinstance(output.get("choices"), list):
        output = [choice.get("message") if isinstance(choice, Mapping) else None for choice in output["choices"]]
    return [_answer(one) for one in output] if isinstance(output, list) and output else [_answer(output)]


def _answer(output: Any) -> dict[str, Any]:
    if isinstance(output, str):
        return {"role": "assistant", "content": output}
    if isinstance(output, Mapping) and ("content" in output or "tool_calls" in output):
        if output.get("role", "assistant") != "assistant":
            raise InvalidInput(f"a message of role {output['role']!r} is not an answer", field="output")
        return {"role": "assistant", **output}
    raise InvalidInput("a generation needs its output: a message, or a text", field="output")


def _seconds(stamp: Any) -> float | None:
    if stamp is None:
        return None
    try:
        moment = datetime.fromisoformat(str(stamp))
    except ValueError as error:
        raise InvalidInput(f"{stamp!r} is not a time", field="startTime") from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _recognises(path: Path, first: Any) -> bool:
    if not isinstance(first, Mapping):
        return False
    return "type" in first and ("traceId" in first or "trace_id" in first) and "input" in first


FORMAT = Format(NAME, "Langfuse generations (JSON, JSON lines)", _recognises, read)
