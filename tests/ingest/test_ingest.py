"""From journal records to linked steps: shapes of calls, identity, failures, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from core.records import (
    complete_record,
    policy_record,
    register_record,
    session_record,
    steps_record,
)
from core.types import View
from tests.ingest.recorded import TOOLS, Bench, answer_ids, call, encode, rollout


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def kinds(bench: Bench, uid: str) -> list[tuple[str | None, str]]:
    return [(s["transition"], s["call_kind"]) for s in bench.pool.trajectories.get(uid)["steps"]]


def test_a_rollout_is_stored_exactly_and_once_per_token(bench: Bench) -> None:
    records = list(rollout("t", turns=5))
    bench.feed(*records)
    trajectory = bench.pool.trajectories.get("t")
    assert [s["step_uid"] for s in trajectory["steps"]] == [f"t-{i}" for i in range(5)]
    assert kinds(bench, "t") == [(None, "main")] + [("extends", "main")] * 4
    parent: dict[str, Any] | None = None
    for step, record in zip(trajectory["steps"], records, strict=True):
        fields = orjson.loads(record)
        choice = fields["response"]["choices"][0]
        assert step["prompt_ids"].tolist() == fields["response"]["prompt_token_ids"]
        assert step["response_ids"].tolist() == choice["token_ids"]
        assert step["response_logprobs"].tolist() == [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert step["messages"] == fields["request"]["messages"]
        assert step["response_message"] == choice["message"]
        assert step["tools"] == TOOLS
        assert (step["token_source"], step["status"], step["finish_reason"]) == ("engine", "ok", "stop")
        assert (step["policy_version"], step["policy_version_end"]) == (3, 4)
        assert step["sampling"] == {"temperature": 0.7}
        assert step["metadata"] == {"task": {"id": 7}}
        if parent is not None:
            assert step["parent_step_uid"] == parent["step_uid"]
            assert step["n_shared_tokens"] == len(parent["prompt_ids"]) + len(parent["response_ids"])
            assert step["n_shared_messages"] == len(parent["messages"]) + 1
        parent = step
    assert trajectory["prompt_uid"].startswith("p-")
    assert bench.ingest.last_error is None
    assert bench.ingest.lag_s == 0.0


def test_the_same_task_is_the_same_group(bench: Bench) -> None:
    bench.feed(*rollout("a"), *rollout("b"), *rollout("c", task="other"))
    groups = {row["prompt_uid"]: row["n_trajectories"] for row in bench.pool.groups.page().to_pylist()}
    assert sorted(groups.values()) == [1, 2]


def test_choices_are_siblings(bench: Bench) -> None:
    bench.feed(call("s", [user("q")], "answer", trajectory_uid="t", n=3))
    steps = bench.pool.trajectories.get("t")["steps"]
    assert [s["step_uid"] for s in steps] == ["s", "s.1", "s.2"]
    assert [s["call_kind"] for s in steps] == ["main"] * 3
    assert all(s["trainable"] for s in steps)
    assert [bytes(s["response_ids"][:-1].tolist()).decode() for s in steps] == ["answer", "answer 1", "answer 2"]
    assert [s["n_shared_tokens"] for s in steps[1:]] == [len(encode([user("q")]))] * 2


def test_a_failed_call_is_a_row_and_nothing_hangs_on_it(bench: Bench) -> None:
    bench.feed(
        call(
            "bad",
            [user("q")],
            None,
            trajectory_uid="t",
            http_status=500,
            error={"type": "engine_error", "message": "no"},
        ),
        call("good", [user("q")], "yes", trajectory_uid="t", retry_count=1),
        call("gone", [user("q"), assistant("yes"), user("w")], "x", trajectory_uid="t", aborted=True),
    )
    bad, good, gone = bench.pool.trajectories.get("t")["steps"]
    assert (bad["status"], bad["error"], bad["trainable"]) == ("error", "engine_error: no", False)
    assert (bad["prompt_ids"], bad["response_ids"], bad["response_message"]) == (None, None, None)
    assert bad["messages"] == [user("q")]
    assert (good["status"], good["call_kind"], good["trainable"], good["parent_step_uid"]) == ("ok", "main", True, None)
    assert (gone["status"], gone["trainable"]) == ("aborted", False)


def test_lengths_that_disagree_are_marked_and_kept(bench: Bench) -> None:
    record = orjson.loads(call("s", [user("q")], "answer", trajectory_uid="t"))
    record["response"]["choices"][0]["token_ids"].pop()
    bench.feed(orjson.dumps(record))
    step = bench.pool.steps.get("s")
    assert step["status"] == "mismatch"
    assert step["mismatch"]
    assert not step["trainable"]
    assert len(step["response_ids"]) == 6
    assert len(step["response_logprobs"]) == 7


def test_completions_in_text_and_in_ids(bench: Bench) -> None:
    for uid, prompt in (("text", "once"), ("ids", [5, 6])):
        record = orjson.loads(call(uid, [], "upon", trajectory_uid=uid))
        record["dialect"] = record["engine_dialect"] = "completions"
        record["request"] = {"prompt": prompt}
        record["response"] = {"choices": [{"index": 0, "text": "upon", "finish_reason": "length", "token_ids": [7]}]}
        bench.feed(orjson.dumps(record))
    text, ids = bench.pool.steps.get("text"), bench.pool.steps.get("ids")
    assert text["messages"] == [user("once")]
    assert text["response_message"] == assistant("upon")
    assert ids["messages"] is None
    assert ids["prompt_ids"].tolist() == [5, 6]
    assert ids["response_ids"].tolist() == [7]


def test_what_is_said_of_a_trajectory(bench: Bench) -> None:
    bench.feed(
        register_record(at=1e9, trajectory_uid="t", prompt_uid="named", channel="val"),
        *rollout("t", turns=3),
        session_record(at=1e9, key_sha256="k", trajectory_uid="t", channel="val", metadata={"a": 1}),
        policy_record(at=1e9, version=5, event="registered"),
        complete_record(at=1e9, trajectory_uid="t", reward=0.25, outcome="solved"),
    )
    trajectory = bench.pool.trajectories.get("t")
    assert (trajectory["complete"], trajectory["reward"], trajectory["outcome"]) == (True, 0.25, "solved")
    assert (trajectory["prompt_uid"], trajectory["channel"]) == ("named", "val")
    assert [s["is_last"] for s in trajectory["steps"]] == [False, False, True]
    assert {s["prompt_uid"] for s in trajectory["steps"]} == {"named"}
    assert bench.pool.steps.count(View({"channel": "val"})) == 3
    (session,) = bench.pool.journal.sessions()
    assert (session["key_sha256"], session["trajectory_uid"], session["metadata"]) == ("k", "t", {"a": 1})
    (event,) = bench.pool.journal.policy_events()
    assert (event.version, event.event, event.created_at) == (5, "registered", 1e9)


def test_submitted_steps(bench: Bench) -> None:
    steps = [
        {"step_uid": "w0", "trajectory_uid": "w", "step_index": 0, "prompt_uid": "p", "prompt_ids": [1, 2],
         "response_ids": [3, 4], "response_logprobs": [-0.5, -1.0], "source": "whitebox", "channel": "train"},
        {"step_uid": "w1", "trajectory_uid": "w", "step_index": 1, "prompt_uid": "p", "prompt_ids": [1, 2, 3, 4, 5],
         "response_ids": [6], "response_logprobs": [-0.5, -1.0], "reward": 1.0, "is_last": True},
    ]  # fmt: skip
    bench.feed(steps_record(at=1e9, steps=steps))
    first, second = bench.pool.trajectories.get("w")["steps"]
    assert (first["token_source"], first["identity_source"], first["created_at"][:10]) == (
        "whitebox", "producer", "2001-09-09",
    )  # fmt: skip
    assert (second["transition"], second["n_shared_tokens"], second["reward"]) == ("extends", 4, 1.0)
    assert second["status"] == "mismatch"
    bench.feed(steps_record(at=1e9, steps=steps))
    assert bench.pool.stats.totals()["n_steps"] == 2
    assert bench.pool.stats.totals()["n_conflicts"] == 0


def test_a_title_request_is_auxiliary_once_the_work_begins(bench: Bench) -> None:
    title = call("title", [{"role": "system", "content": "make a title"}, user("task")], "Title", trajectory_uid="t")
    bench.feed(title)
    assert bench.pool.steps.get("title")["call_kind"] == "main"
    bench.feed(*rollout("t", turns=2))
    steps = {s["step_uid"]: s for s in bench.pool.trajectories.get("t")["steps"]}
    assert (steps["title"]["call_kind"], steps["title"]["trainable"]) == ("auxiliary", False)
    assert steps["t-0"]["call_kind"] == "main"
    assert steps["t-1"]["transition"] == "extends"


def test_unknown_identity_is_inferred_from_what_is_repeated(bench: Bench) -> None:
    """Two agents at the same task, interleaved: each call joins the one whose answers it repeats."""
    one, two = list(rollout("one", known=False)), list(rollout("two", known=False))
    bench.feed(*[record for pair in zip(one, two, strict=True) for record in pair])
    rows = bench.pool.steps.page(order="step_uid").to_pylist()
    owners = {row["step_uid"]: row["trajectory_uid"] for row in rows}
    assert {owners[f"one-{i}"] for i in range(4)} == {"inferred-one-0"}
    assert {owners[f"two-{i}"] for i in range(4)} == {"inferred-two-0"}
    assert {row["identity_source"] for row in rows} == {"inferred"}
    assert bench.pool.groups.page().num_rows == 1


def test_a_side_call_without_a_name_joins_the_turn_whose_trace_it_carries(bench: Bench) -> None:
    """It repeats nothing that was said; only the W3C trace tells that it belongs to the turn."""

    def traced(record: bytes, trace: str) -> bytes:
        fields = orjson.loads(record)
        fields["client_headers"] = {"traceparent": f"00-{trace}-{'1' * 16}-01"}
        return orjson.dumps(fields)

    one, two = list(rollout("one", known=False, turns=2)), list(rollout("two", known=False, turns=1))
    title = [{"role": "system", "content": "name the talk"}, user("something else")]
    bench.feed(traced(one[0], "a" * 32), traced(two[0], "b" * 32), traced(call("side", title, "Title"), "a" * 32))
    bench.restart()
    bench.feed(traced(one[1], "c" * 32), traced(call("late", title, "Title 2"), "b" * 32))
    bench.feed(traced(call("stranger", title, "Title 3"), "0" * 32))
    owners = {row["step_uid"]: row["trajectory_uid"] for row in bench.pool.steps.page().to_pylist()}
    assert owners["side"] == owners["one-0"] == owners["one-1"]
    assert owners["late"] == owners["two-0"]
    assert owners["stranger"] not in (owners["one-0"], owners["two-0"])


def test_an_ephemeral_tail_and_rewritten_call_ids_do_not_break_the_chain(bench: Bench) -> None:
    """Every request ends with a message that the next one drops, and tool-call ids come back changed."""
    history, n = [{"role": "system", "content": "s"}, user("task")], 4
    for turn in range(n):
        function = {"name": "run", "arguments": f'{{"n": {turn}}}'}
        answer = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": function}],
        }
        bench.feed(call(f"s{turn}", [*history, user(f"<context {turn}>")], answer, tools=TOOLS, at=1e9 + turn))
        sent_back = orjson.loads(orjson.dumps(answer))
        sent_back["tool_calls"][0]["id"] = f"call{turn}"
        history += [sent_back, {"role": "tool", "tool_call_id": f"call{turn}", "content": f"r{turn}"}]
    (trajectory,) = bench.pool.trajectories.page().to_pylist()
    assert trajectory["n_steps"] == n
    steps = bench.pool.trajectories.get(trajectory["trajectory_uid"])["steps"]
    assert [s["transition"] for s in steps] == [None] + ["tail_replaced"] * (n - 1)
    assert [s["parent_step_uid"] for s in steps] == [None, "s0", "s1", "s2"]


def test_a_malformed_record_is_a_row_and_never_stops_ingest(bench: Bench) -> None:
    good = list(rollout("t", turns=2))
    odd = orjson.loads(good[1])
    odd["step_uid"], odd["started_at"] = "odd", "yesterday"
    huge = orjson.loads(good[1])
    huge["step_uid"] = "huge"
    huge["response"]["choices"][0]["token_ids"] = [2**40] * 3
    bench.feed(good[0], b"not json", b'{"kind": "mystery"}', orjson.dumps(odd), orjson.dumps(huge), good[1])
    assert bench.pool.stats.totals()["n_steps"] == 2
    errors = bench.pool.journal.errors()
    assert len(errors) == 4
    assert any("started_at" in error["reason"] for error in errors)
    assert bench.ingest.last_error is None
    bench.restart()
    assert bench.ingest.run_once() == 0


def test_a_restart_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    agents = [list(rollout(f"known{i}", turns=4)) for i in range(2)]
    agents += [list(rollout(f"anon{i}", turns=4, known=False)) for i in range(2)]
    agents.append([call("title", [{"role": "system", "content": "title"}, user("task")], "T", trajectory_uid="known0")])
    order = [records[turn] for turn in range(4) for records in agents if turn < len(records)]
    tables = []
    for folder, restarts in ((tmp_path / "a", False), (tmp_path / "b", True)):
        folder.mkdir()
        bench = Bench(folder)
        for record in order:
            bench.feed(record)
            if restarts:
                bench.restart()
        tables.append(bench.pool.steps.page(order="step_uid", limit=None))
        bench.close()
    assert tables[0].num_rows == len(order)
    assert tables[0].equals(tables[1])


def test_links_survive_when_memory_holds_one_trajectory(bench: Bench) -> None:
    bench.ingest._linker._max_bytes = 1
    agents = [list(rollout(f"t{n}", turns=3)) for n in range(3)]
    for turn in range(3):
        bench.feed(*[agent[turn] for agent in agents])
    for n in range(3):
        assert kinds(bench, f"t{n}") == [(None, "main"), ("extends", "main"), ("extends", "main")]
    assert len(bench.ingest._linker._trajectories) == 1


def test_the_thread_takes_in_what_is_synced(bench: Bench) -> None:
    bench.ingest.start()
    try:
        for record in rollout("t", turns=6):
            bench.journal.append(record).result()
        assert bench.ingest.catch_up(120)
        assert bench.pool.stats.totals()["n_steps"] == 6
        assert bench.ingest.n_ingested == 6
    finally:
        bench.ingest.stop()


def test_answers_hold_their_own_tokens() -> None:
    assert answer_ids(assistant("hi")) == [104, 105]
