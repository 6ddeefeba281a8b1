"""A record in which something is of another kind than it should be costs that record and nothing else."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from core.api.wire import StepIn, check
from core.errors import InvalidInput
from core.imports import FORMATS, ConvertedRecord, Problem, recognise

from .test_formats import CALL, CHAT, DATA, TOOLS

ODD: tuple[Any, ...] = (None, 7, -0.5, True, "x", "", "{", [], {}, [None], ["x"], [{}], {"x": None}, 10**30, [[1]])

SLIME = {
    "group_index": 3, "tokens": [1, 2, 3, 11, 12], "response_length": 2, "reward": 1.0, "loss_mask": [1, 1],
    "rollout_log_probs": [-0.1, -0.2], "weight_versions": ["7"], "status": "truncated", "metadata": {"a": 1},
}  # fmt: skip
LANGFUSE = {
    "id": "lf", "traceId": "t", "type": "GENERATION", "startTime": "2026-09-01T12:00:00Z", "endTime": None,
    "model": "m", "modelParameters": {"temperature": 0.5}, "sessionId": "s", "name": "n",
    "input": {"messages": CHAT[:2], "tools": TOOLS}, "output": {"choices": [{"message": CHAT[4]}]},
}  # fmt: skip
CLAWGYM_CALL = {
    "session_id": "s", "messages": CHAT[:2], "response_text": "<think>a</think>b", "tool_calls": [CALL],
    "tools": TOOLS, "timestamp": "2026-09-01 12:00:00", "reward": 1, "next_state": {"role": "tool"},
}  # fmt: skip
CLAWGYM_LOG = {
    "session_id": "s", "raw_prompts": {"system_prompt": "a", "user_prompt": "b", "tools": TOOLS},
    "steps": [{"content": "c", "reasoning_content": "r", "tool_calls": [{"name": "f", "arguments": {}}],
               "observations": ["o"]}], "reward": 1.0, "task_id": "t",
}  # fmt: skip
MESSAGES = {"messages": CHAT, "tools": TOOLS, "reward": 1, "metadata": {"a": 1}, "trajectory_uid": "t"}
STEP = {"trajectory_uid": "t", "step_index": 0, "prompt_ids": [1], "response_ids": [2], "response_logprobs": [-0.5]}


def litellms() -> Any:
    with (DATA / "litellm.jsonl").open() as file:
        return json.loads(file.readline())


RECORDS = {
    "slime": SLIME, "langfuse": LANGFUSE, "clawgym": CLAWGYM_CALL, "messages": MESSAGES, "steps": STEP,
    "clawgym-log": CLAWGYM_LOG, "litellm": litellms(),
}  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a record, the parts of lists by their first only."""
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for name, part in inner:
        yield (*at, name)
        yield from places(part, (*at, name))


def spoilt(record: Any) -> Iterator[Any]:
    for where in places(record):
        for odd in ODD:
            copied = deepcopy(record)
            held = copied
            for name in where[:-1]:
                held = held[name]
            held[where[-1]] = odd
            yield copied


@pytest.mark.parametrize("name", RECORDS)
def test_what_is_odd_costs_its_own_record(tmp_path: Path, name: str) -> None:
    good = RECORDS[name]
    form = FORMATS[name.partition("-")[0]]
    path = tmp_path / "records.jsonl"
    odd = list(spoilt(good))
    path.write_text("".join(json.dumps(record) + "\n" for record in [good, *odd, good]))
    assert recognise(path).name == form.name
    read = list(form.read(path))
    assert len(read) == len(odd) + 2
    # The good ones are there whatever stands between them.
    for one in (read[0], read[-1]):
        assert isinstance(one, ConvertedRecord)
        assert one.steps
    for one in read:
        steps = one.steps if isinstance(one, ConvertedRecord) else ()
        for step in steps:
            try:
                check(StepIn, step)
            except InvalidInput as error:
                assert error.message
    assert any(isinstance(one, Problem) for one in read) or name in ("steps",)


def test_rllms_odd_traces_cost_themselves(tmp_path: Path) -> None:
    path = tmp_path / "rllm.db"
    path.write_bytes((DATA / "rllm.db").read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        (data,) = connection.execute("SELECT data FROM traces LIMIT 1").fetchone()
        n_good = connection.execute("SELECT count(*) FROM trace_sessions").fetchone()[0]
        columns = [row[1] for row in connection.execute("PRAGMA table_info(traces)")]
        odd = [*map(json.dumps, spoilt(json.loads(data))), "", "{", "[]", "3", "null"]
        (model,) = connection.execute("SELECT * FROM traces LIMIT 1")
        (link,) = connection.execute("SELECT * FROM trace_sessions LIMIT 1")
        links = [row[1] for row in connection.execute("PRAGMA table_info(trace_sessions)")]
        for number, text in enumerate(odd):
            row = dict(zip(columns, model, strict=True)) | {"trace_id": f"odd-{number}", "data": text}
            link_row = dict(zip(links, link, strict=True)) | {
                "trace_id": f"odd-{number}",
                "session_id": f"odd-{number}",
            }
            for table, values in (("traces", row), ("trace_sessions", link_row)):
                marks = ", ".join("?" * len(values))
                connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))
        connection.commit()
    read = list(FORMATS["rllm"].read(path))
    assert len(read) == n_good + len(odd)
    good = [one for one in read if isinstance(one, ConvertedRecord) and not one.where.startswith("rllm.db:odd")]
    assert len(good) == n_good
    for one in read:
        for step in one.steps if isinstance(one, ConvertedRecord) else ():
            try:
                check(StepIn, step)
            except InvalidInput as error:
                assert error.message
