"""Each format: recognised, read exactly, taken once. rLLM's and LiteLLM's files were written by those programs."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from core.client import StudioClient
from core.errors import InvalidInput
from core.imports import FORMATS, recognise, run
from core.serving.tokenizer import ASSETS, ChatTokenizer
from tests.batch.keeping_all import SFT_ALL

DATA = Path(__file__).parent / "data"
TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.txt"}'}}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What does a.txt say?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "hello"},
    {"role": "assistant", "content": "It says hello."},
]


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def taken(path: Path, client: StudioClient, expected: str, n_steps: int, **options: Any) -> None:
    """Import twice: the second time adds nothing."""
    assert recognise(path).name == expected
    report = run([path], client, **options)
    assert (report.n_steps, report.n_known, report.problems) == (n_steps, 0, [])
    again = run([path], client, format=expected, **options)
    assert (again.n_steps, again.n_known, again.problems) == (0, n_steps, [])


def test_a_conversation_is_a_step_per_assistant_turn(client: StudioClient, tmp_path: Path) -> None:
    record = {"messages": CHAT, "tools": TOOLS, "reward": 0, "trajectory_uid": "t-chat", "set": "A"}
    taken(lines(tmp_path / "chat.jsonl", record), client, "messages", 2, channel="sft", agent="writer")
    trajectory = client.trajectory("t-chat")
    assert (trajectory["complete"], trajectory["reward"], trajectory["channel"]) == (True, 0.0, "sft")
    one, two = trajectory["steps"]
    assert (one["messages"], one["response_message"], one["tools"]) == (CHAT[:2], CHAT[2], TOOLS)
    assert (two["messages"], two["response_message"]) == (CHAT[:4], CHAT[4])
    assert [step["reward"] for step in (one, two)] == [None, 0.0]
    assert [step["finish_reason"] for step in (one, two)] == ["tool_calls", "stop"]
    assert {step["source"] for step in (one, two)} == {"import"}
    assert {step["agent"] for step in (one, two)} == {"writer"}
    assert two["transition"] == "extends"
    assert one["metadata"] == {"imported_from": "messages", "set": "A"}


def test_context_turns_are_no_steps_and_equal_rollouts_stay_two(client: StudioClient, tmp_path: Path) -> None:
    context = [{**CHAT[2], "weight": 0} if message is CHAT[2] else message for message in CHAT]
    path = lines(tmp_path / "chat.jsonl", {"messages": context, "id": 7}, {"messages": context, "id": 7})
    taken(path, client, "messages", 2, channel="twins")
    steps = list(client.steps(channel="twins"))
    assert len({row["trajectory_uid"] for row in steps}) == 2
    assert client.step(steps[0]["step_uid"])["messages"] == CHAT[:4], "without the weight, which is no part of it"


def test_what_is_wrong_is_named_by_its_place(client: StudioClient, tmp_path: Path) -> None:
    good = {"messages": CHAT, "trajectory_uid": "t-good"}
    path = lines(
        tmp_path / "mixed.jsonl",
        good,
        {"messages": "none"},
        {"messages": CHAT[:2]},
        {"messages": CHAT, "reward": "high"},
        {"messages": CHAT, "trajectory_uid": "x" * 1000},
        [1],
    )
    with path.open("a") as file:
        file.write("{broken\n")
    with pytest.raises(InvalidInput, match=r"mixed.jsonl:2: not JSON.*\(5 more\)"):
        run([path], client, all_or_nothing=True)
    assert client.known(["t-good"]) == set()
    report = run([path], client)
    assert report.formats == {str(path): "messages"}
    assert (report.n_records, report.n_steps, report.n_problems) == (7, 2, 6)
    assert [(problem.where, problem.field) for problem in report.problems] == [
        ("mixed.jsonl:2", "messages"),
        ("mixed.jsonl:3", "messages"),
        ("mixed.jsonl:4", "reward"),
        ("mixed.jsonl:5", "trajectory_uid"),
        ("mixed.jsonl:6", None),
        ("mixed.jsonl:7", None),
    ]


def test_an_import_cut_short_is_taken_up_again(client: StudioClient, tmp_path: Path) -> None:
    chats = [{"messages": CHAT, "id": number} for number in range(250)]

    class Broken(Exception):
        pass

    def stop(report: Any) -> None:
        raise Broken

    with pytest.raises(Broken):
        run([lines(tmp_path / "many.jsonl", *chats)], client, channel="cut", progress=stop)
    first = len(list(client.steps(channel="cut")))
    assert 0 < first < 500
    seen: list[int] = []
    report = run(
        [tmp_path / "many.jsonl"],
        client,
        channel="cut",
        progress=lambda report_so_far: seen.append(report_so_far.n_records),
    )
    assert (report.n_steps, report.n_known) == (500 - first, first)
    assert seen == sorted(seen)
    assert len(seen) > 1


def test_rllms_trace_store(client: StudioClient) -> None:
    taken(DATA / "rllm.db", client, "rllm", 4, channel="rllm")
    with closing(sqlite3.connect(DATA / "rllm.db")) as connection:
        query = "SELECT data FROM traces ORDER BY json_extract(data, '$.timestamp')"
        stored = [json.loads(row[0]) for row in connection.execute(query)]
    for session in ("rollout-0", "rollout-1"):
        trajectory = client.trajectory(session)
        traces = [trace for trace in stored if trace["session_id"] == session]
        assert trajectory["complete"]
        assert len(trajectory["steps"]) == len(traces) == 2
        for step, trace in zip(trajectory["steps"], traces, strict=True):
            assert step["prompt_ids"] == trace["prompt_token_ids"]
            assert step["response_ids"] == trace["completion_token_ids"]
            assert step["response_logprobs"] == pytest.approx(trace["logprobs"])
            assert step["token_source"] == "engine"
            assert step["sampling"]["temperature"] == 0.7
            assert step["tools"][0]["function"]["name"] == "read_file"
            assert step["metadata"]["trace_id"] == trace["trace_id"]
        assert trajectory["steps"][1]["transition"] == "extends"


def test_litellms_log(client: StudioClient, tmp_path: Path) -> None:
    """Its trace ids are the sessions of another gateway's file as well: the agent's uid tells them apart here."""
    path = DATA / "litellm.jsonl"
    payloads = [json.loads(line) for line in path.read_text().splitlines()]
    fresh = [{**payload, "session_id": f"litellm-{payload['trace_id']}"} for payload in payloads]
    assert recognise(path).name == "litellm"
    assert "api_key" not in json.dumps(list(FORMATS["litellm"].read(path)), default=lambda item: item.steps)
    copy = lines(tmp_path / "litellm.jsonl", *fresh)
    taken(copy, client, "litellm", 5, channel="litellm")
    trajectory = client.trajectory("litellm-rollout-0")
    mine = [payload for payload in fresh if payload["session_id"] == "litellm-rollout-0"]
    for step, payload in zip(trajectory["steps"], mine, strict=True):
        choice = payload["response"]["choices"][0]
        assert step["prompt_ids"] == payload["response"]["prompt_token_ids"]
        assert step["response_ids"] == choice["provider_specific_fields"]["token_ids"]
        assert step["response_logprobs"] == pytest.approx([x["logprob"] for x in choice["logprobs"]["content"]])
        assert (step["response_id"], step["token_source"]) == (payload["id"], "engine")
        assert step["messages"] == payload["messages"]
        assert step["metadata"]["request_tags"] == ["nightly"]
    assert trajectory["steps"][0]["response_message"]["tool_calls"][0]["function"]["name"] == "read_file"
    failed = client.trajectory("litellm-rollout-2")["steps"][0]
    assert (failed["status"], failed["trainable"]) == ("error", False)
    assert "scripted failure" in failed["error"]


def test_clawgyms_record_file(client: StudioClient, tmp_path: Path) -> None:
    """Calls of two rollouts mixed, as its proxy writes them."""
    text = "<think>\nRead it.\n</think>\n\n<tool_call>\n{}\n</tool_call><|im_end|>\n"
    calls = []
    for number, messages in enumerate((CHAT[:2], CHAT[:4])):
        for session in ("gym-a", "gym-b"):
            record = {"session_id": session, "step": number + 1, "messages": messages}
            record["timestamp"] = "2026-09-01 12:00:00"
            last = {"response_text": "It says hello.<|im_end|>\n", "tool_calls": [], "next_state": None}
            call = {"response_text": text, "tool_calls": [CALL], "next_state": CHAT[3]}
            calls.append({**record, "prompt_text": "...", **(last if number else call)})
    taken(lines(tmp_path / "record.jsonl", *calls), client, "clawgym", 4)
    one, two = client.trajectory("gym-a")["steps"]
    assert one["response_message"] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Read it.",
        "tool_calls": [CALL],
    }
    assert one["metadata"]["next_state"] == CHAT[3]
    assert two["response_message"] == {"role": "assistant", "content": "It says hello."}
    assert (two["messages"], two["is_last"]) == (CHAT[:4], True)


def test_clawgyms_conversation_log(client: StudioClient, tmp_path: Path) -> None:
    turns = [
        {
            "step": 1,
            "content": "",
            "reasoning_content": "Read it.",
            "tool_calls": [{"name": "read_file", "arguments": "{}"}],
            "observations": ["hello"],
        },
        {"step": 2, "content": "It says hello.", "reasoning_content": "", "tool_calls": [], "observations": []},
    ]
    prompts = {"system_prompt": "Be brief.", "user_prompt": "What does a.txt say?", "tools": json.dumps(TOOLS)}
    log = {"ok": True, "session_id": "gym-log", "steps": turns, "raw_prompts": prompts, "reward": 0.5}
    (tmp_path / "log.json").write_text(json.dumps(log, indent=2))
    taken(tmp_path / "log.json", client, "clawgym", 2)
    trajectory = client.trajectory("gym-log")
    assert (trajectory["reward"], trajectory["complete"]) == (0.5, True)
    assert [m["role"] for m in trajectory["steps"][1]["messages"]] == ["system", "user", "assistant", "tool"]
    assert trajectory["steps"][1]["messages"][3]["content"] == "hello"
    assert trajectory["steps"][0]["tools"] == TOOLS


def test_slimes_samples(client: StudioClient, tmp_path: Path) -> None:
    import torch

    sample = {
        "group_index": 3,
        "index": 5,
        "prompt": "",
        "tokens": [1, 2, 3, 11, 12, 4, 5, 13, 14, 15],
        "response": "",
        "response_length": 7,
        "label": "x",
        "reward": 1.0,
        "loss_mask": [1, 1, 0, 0, 1, 1, 1],
        "rollout_log_probs": [-0.1, -0.2, 0.0, 0.0, -0.3, -0.4, -0.5],
        "weight_versions": ["7"],
        "status": "truncated",
        "metadata": {"a": 1},
    }
    taken(lines(tmp_path / "samples.jsonl", sample, {**sample, "reward": 0.0}), client, "slime", 4, channel="slime")
    steps = sorted(client.steps(channel="slime"), key=lambda row: (row["trajectory_reward"], row["step_index"]))
    assert {row["prompt_uid"] for row in steps} == {"slime-samples.jsonl-3"}
    one, two = (client.step(row["step_uid"]) for row in steps[2:])
    assert (one["prompt_ids"], one["response_ids"]) == ([1, 2, 3], [11, 12])
    assert (two["prompt_ids"], two["response_ids"]) == ([1, 2, 3, 11, 12, 4, 5], [13, 14, 15])
    assert two["response_logprobs"] == pytest.approx([-0.3, -0.4, -0.5])
    assert (one["reward"], two["reward"], two["finish_reason"], two["policy_version"]) == (None, 1.0, "length", 7)
    assert [row["trajectory_reward"] for row in steps] == [0.0, 0.0, 1.0, 1.0]
    torch.save({"rollout_id": 0, "samples": [sample]}, tmp_path / "rollout_0.pt")
    taken(tmp_path / "rollout_0.pt", client, "slime", 2, channel="slime-pt")


def test_langfuses_generations(client: StudioClient, tmp_path: Path) -> None:
    """The API's answer and the bulk export, with inputs the way its integrations write them."""
    api = [
        {
            "id": f"lf-{number}",
            "traceId": "lf-trace",
            "type": "GENERATION",
            "startTime": f"2026-09-01T12:00:0{number}.000Z",
            "endTime": f"2026-09-01T12:00:0{number}.500Z",
            "projectId": "p",
            "level": "DEFAULT",
            "sessionId": "user-1",
            "model": "m",
            "modelParameters": {"temperature": 0.5},
            "input": given,
            "output": output,
            "usageDetails": {"input": 9, "output": 3},
        }
        for number, (given, output) in enumerate(
            [({"messages": CHAT[:2], "tools": TOOLS}, CHAT[2]), (CHAT[:4], CHAT[4])]
        )
    ]
    span = {"id": "lf-span", "traceId": "lf-trace", "type": "SPAN", "startTime": "2026-09-01T12:00:00Z", "input": {}}
    (tmp_path / "api.json").write_text(json.dumps({"data": [span, *api], "meta": {}}, indent=1))
    taken(tmp_path / "api.json", client, "langfuse", 2)
    one, two = client.trajectory("lf-trace")["steps"]
    assert (one["messages"], one["response_message"], one["tools"]) == (CHAT[:2], CHAT[2], TOOLS)
    assert (two["messages"], two["is_last"], two["sampling"]) == (CHAT[:4], True, {"temperature": 0.5})
    assert one["latency_s"] == pytest.approx(0.5)
    assert one["metadata"] == {"imported_from": "langfuse", "observation_id": "lf-0", "session_id": "user-1"}
    bulk = {
        "id": "lf-bulk",
        "trace_id": "lf-bulk-trace",
        "type": "GENERATION",
        "start_time": "2026-09-01 12:00:00.000",
        "end_time": None,
        "model_parameters": "{}",
        "input": json.dumps(CHAT[:2]),
        "output": "It says hello.",
        "level": "DEFAULT",
    }
    failed = {**bulk, "id": "lf-f", "level": "ERROR", "status_message": "too long", "output": None}
    odd = {**bulk, "id": "lf-odd", "trace_id": "lf-odd", "input": None}
    path = lines(tmp_path / "bulk.jsonl", bulk, failed, odd)
    report = run([path], client)
    assert (report.n_steps, [(p.where, p.field) for p in report.problems]) == (2, [("bulk.jsonl:3", "input")])
    first, second = client.trajectory("lf-bulk-trace")["steps"]
    assert first["response_message"] == {"role": "assistant", "content": "It says hello."}
    assert (second["status"], second["error"]) == ("error", "too long")


def test_our_parquet_comes_back_exactly(client: StudioClient, tmp_path: Path) -> None:
    """Exported, imported into another pool, exported again: the same rows."""
    import pyarrow.parquet as pq

    from core.config import Settings
    from core.service import Service

    tokenizer = ChatTokenizer(ASSETS)
    prompt = tokenizer.encode("hello")
    for number in range(3):
        with client.rollout(prompt_uid="pq-group", channel="pq", trajectory_uid=f"pq-{number}") as rollout:
            messages = [{"role": "user", "content": "hello"}]
            rollout.step(
                prompt_ids=prompt,
                response_ids=[5, 6],
                response_logprobs=[-0.123456789, None if number == 2 else -2.0],
                messages=messages,
                response_message={"role": "assistant", "content": "é"},
                tools=TOOLS,
                sampling={"temperature": 0.5},
                policy_version=4,
                metadata={"n": number, "deep": {"x": [1, None]}},
            )
            rollout.step(prompt_ids=[*prompt, 5, 6, 9], response_ids=[7], reward=0.0 if number else None, is_last=True)
            rollout.reward = [0.25, None, 1.5][number]
    recipe = {**SFT_ALL, "channel": "pq"}
    view = {"filters": {"channel": "pq"}}
    first = client.call("POST", "/api/v1/exports", {"format": "steps_parquet", "view": view, "recipe": recipe})
    other = Service.open(Settings(data_dir=tmp_path / "other", port=0, engine="http://127.0.0.1:9/v1"))
    try:
        with StudioClient(other.base_url) as there:
            taken(Path(first["path"]), there, "steps_parquet", first["n_rows"], channel="pq")
            second = there.call("POST", "/api/v1/exports", {"format": "steps_parquet", "view": view, "recipe": recipe})
    finally:
        other.close()
    before, after = (pq.read_table(exported["path"]) for exported in (first, second))
    assert before.num_rows == after.num_rows == 6
    for name in before.column_names:
        assert before[name].to_pylist() == after[name].to_pylist(), name


def test_what_is_no_known_format_is_refused(tmp_path: Path, client: StudioClient) -> None:
    with pytest.raises(InvalidInput, match="no known format"):
        recognise(lines(tmp_path / "odd.jsonl", {"x": 1}))
    with pytest.raises(InvalidInput, match="not a file"):
        recognise(tmp_path / "none")
    with pytest.raises(InvalidInput, match="no format 'csv'"):
        run([tmp_path / "none"], client, format="csv")
