"""The HTTP contract, exercised from outside: ``claw-studio serve`` as a process, plain HTTP, the scripted engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.serving.process import EngineProcess
from core.serving.tokenizer import tokenizer_hash
from tests.conftest import ServeProcess, eventually, scripted_engine

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = {
    "model": "scripted-1",
    "rules": [
        {
            "when": {"turn": 0, "has_tools": True},
            "reply": {"content": "", "tool_calls": [{"name": "read_file", "arguments": {"path": "a.txt"}}]},
        },
        {"when": {"contains": "break"}, "reply": {"content": "-"}, "fault": "status:500"},
    ],
    "default": {"reply": {"content": "The answer is forty-two."}},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
        },
    }
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with scripted_engine(tmp_path_factory.mktemp("engine"), SCRIPT) as running:
        yield running


@pytest.fixture(scope="module")
def studio(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    assert engine.base_url
    process = ServeProcess(tmp_path_factory.mktemp("contract") / "data", engine.base_url)
    yield process
    assert process.stop() == 0


def chat(studio: ServeProcess, text: str, path: str = "/v1", **kwargs: Any) -> httpx.Response:
    body = {"model": "scripted-1", "messages": [{"role": "user", "content": text}], **kwargs.pop("body", {})}
    return studio.http.post(f"{path}/chat/completions", json=body, **kwargs)


def step_of(studio: ServeProcess, uid: str) -> dict[str, Any]:
    def step() -> dict[str, Any] | None:
        answer = studio.http.get(f"/api/v1/steps/{uid}")
        return answer.json() if answer.status_code == 200 else None

    return eventually(step)


def engine_log(engine: EngineProcess) -> list[dict[str, Any]]:
    assert engine.base_url
    return httpx.get(engine.base_url.removesuffix("/v1") + "/__log", timeout=120).json()["requests"]


STEP_FIELDS = set(
    [
        "step_uid",
        "trajectory_uid",
        "prompt_uid",
        "step_index",
        "channel",
        "source",
        "agent",
        "model",
        "policy_version",
        "token_source",
        "transition",
        "call_kind",
        "identity_source",
        "reward",
        "trainable",
        "is_last",
        "finish_reason",
        "n_prompt_tokens",
        "n_response_tokens",
        "created_at",
        "metadata",
        "prompt_ids",
        "response_ids",
        "response_logprobs",
        "messages",
        "tools",
        "response_message",
        "parent_step_uid",
        "n_shared_tokens",
    ]
)


def test_identity_by_path(studio: ServeProcess, engine: EngineProcess) -> None:
    answer = chat(studio, "by path", "/t-path/p-path/v1", body={"tools": TOOLS})
    assert answer.status_code == 200, answer.text
    assert "token_ids" not in answer.json()["choices"][0], "a client that did not ask sees nothing unusual"
    step = step_of(studio, answer.headers["x-step-uid"])
    assert step.keys() >= STEP_FIELDS
    assert (step["trajectory_uid"], step["prompt_uid"], step["identity_source"]) == ("t-path", "p-path", "path")
    assert step["token_source"] == "engine"
    assert step["tokenizer_hash"] == tokenizer_hash()
    assert len(step["response_ids"]) == len(step["response_logprobs"]) == step["n_response_tokens"]
    assert step["tools"] == TOOLS
    assert step["response_message"]["tool_calls"][0]["function"]["name"] == "read_file"
    log = engine_log(engine)[-1]
    assert step["prompt_ids"] == log["choices"][0]["prompt_ids"]
    assert step["response_ids"] == log["choices"][0]["response_ids"]


def test_identity_by_header_and_multi_turn(studio: ServeProcess) -> None:
    headers = {"X-Trajectory-Uid": "t-head", "X-Prompt-Uid": "p-head", "X-Channel": "val", "X-Agent": "probe"}
    first = chat(studio, "start", headers=headers, body={"tools": TOOLS})
    message = first.json()["choices"][0]["message"]
    messages = [
        {"role": "user", "content": "start"},
        message,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "hello from a.txt"},
    ]
    second = chat(studio, "", headers=headers, body={"tools": TOOLS, "messages": messages})
    assert second.json()["choices"][0]["message"]["content"] == "The answer is forty-two."
    step_of(studio, second.headers["x-step-uid"])
    trajectory = studio.http.get("/api/v1/trajectories/t-head").json()
    one, two = trajectory["steps"]
    assert (trajectory["channel"], one["agent"], one["identity_source"]) == ("val", "probe", "header")
    assert two["transition"] == "extends"
    assert two["parent_step_uid"] == one["step_uid"]
    whole = one["prompt_ids"] + one["response_ids"]
    assert two["prompt_ids"][: len(whole)] == whole
    assert two["n_shared_tokens"] == len(whole)
    assert [m["role"] for m in two["messages"]] == ["user", "assistant", "tool"]


def test_identity_by_session_key_streamed(studio: ServeProcess) -> None:
    session = studio.http.post("/api/v1/sessions", json={"prompt_uid": "p-key", "agent": "sdk"}).json()
    from openai import OpenAI

    client = OpenAI(base_url=session["base_url"], api_key=session["api_key"], max_retries=0)
    with client.chat.completions.with_streaming_response.create(
        model="scripted-1",
        messages=[{"role": "user", "content": "stream this"}],
        stream=True,
        stream_options={"include_usage": True},
    ) as raw:
        uid = raw.headers["x-step-uid"]
        chunks = list(raw.parse())
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "The answer is forty-two."
    assert chunks[-1].usage is not None
    step = step_of(studio, uid)
    assert (step["trajectory_uid"], step["prompt_uid"]) == (session["trajectory_uid"], "p-key")
    assert step["identity_source"] == "key"
    assert chunks[-1].usage.completion_tokens == step["n_response_tokens"]


@pytest.mark.parametrize("name", ["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"])
def test_anthropics_client_takes_a_session_from_the_environment(
    studio: ServeProcess, engine: EngineProcess, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    session = studio.http.post("/api/v1/sessions", json={"prompt_uid": "p-claude"}).json()
    from anthropic import Anthropic

    monkeypatch.setenv("ANTHROPIC_BASE_URL", session["anthropic_base_url"])
    monkeypatch.setenv(name, session["api_key"])
    client = Anthropic(max_retries=0)
    request = {"model": "scripted-1", "messages": [{"role": "user", "content": f"stream this to {name}"}]}
    counted = client.messages.count_tokens(**request).input_tokens
    whole = client.messages.create(max_tokens=99, **request)
    with client.messages.stream(max_tokens=99, **request) as events:
        streamed = events.get_final_message()
    for answer in (whole, streamed):
        assert [block.text for block in answer.content] == ["The answer is forty-two."]
    assert [model.id for model in client.models.list()] == ["scripted-1"]

    def both() -> list[dict[str, Any]] | None:
        answer = studio.http.get(f"/api/v1/trajectories/{session['trajectory_uid']}")
        steps = answer.json()["steps"] if answer.status_code == 200 else []
        return [step_of(studio, step["step_uid"]) for step in steps] if len(steps) == 2 else None

    steps = eventually(both)
    rows = [row["choices"][0] for row in engine_log(engine)[-2:]]
    for step, row in zip(steps, rows, strict=True):
        assert (step["identity_source"], step["prompt_uid"], step["dialect"]) == ("key", "p-claude", "messages")
        assert (step["prompt_ids"], step["response_ids"]) == (row["prompt_ids"], row["response_ids"])
        assert len(step["prompt_ids"]) == counted


def test_no_identity_is_inferred_and_kept(studio: ServeProcess) -> None:
    answer = chat(studio, "nobody in particular")
    step = step_of(studio, answer.headers["x-step-uid"])
    assert step["identity_source"] == "inferred"
    assert step["trajectory_uid"]
    assert step["prompt_uid"]


def test_engine_failure_is_an_error_in_dialect_and_a_step(studio: ServeProcess) -> None:
    answer = chat(studio, "please break", "/t-err/p-err/v1")
    assert answer.status_code >= 500
    assert answer.json()["error"]["message"]
    step = step_of(studio, answer.headers["x-step-uid"])
    assert step["status"] == "error"
    assert step["trainable"] is False


def test_bad_json_names_the_field(studio: ServeProcess) -> None:
    answer = studio.http.post("/v1/chat/completions", content=b"{nope")
    assert answer.status_code == 400
    assert "error" in answer.json()


def test_models(studio: ServeProcess) -> None:
    models = studio.http.get("/v1/models").json()
    assert "scripted-1" in [model["id"] for model in models["data"]]


def white(trajectory: str, index: int, **over: Any) -> dict[str, Any]:
    return {
        "trajectory_uid": trajectory,
        "prompt_uid": "p-white",
        "step_index": index,
        "prompt_ids": [1, 2, 3, *range(10, 10 + 4 * index)],
        "response_ids": [7, 8, 9],
        "response_logprobs": [-0.5, -0.25, -1.0],
        "policy_version": 3,
        **over,
    }


def test_white_box_steps_are_idempotent_and_all_or_nothing(studio: ServeProcess) -> None:
    post: Callable[..., httpx.Response] = lambda steps: studio.http.post("/api/v1/steps", json={"steps": steps})  # noqa: E731
    assert post([white("t-w", 0), white("t-w", 1, is_last=True)]).json()["accepted"] == 2
    assert post([white("t-w", 0)]).status_code == 200
    trajectory = studio.http.get("/api/v1/trajectories/t-w").json()
    assert [s["prompt_ids"] for s in trajectory["steps"]] == [[1, 2, 3], [1, 2, 3, 10, 11, 12, 13]]
    assert trajectory["steps"][0]["response_logprobs"] == [-0.5, -0.25, -1.0]
    assert trajectory["steps"][0]["token_source"] == "whitebox"
    assert trajectory["reward"] is None

    conflict = post([white("t-w", 0, response_ids=[1, 2, 3])])
    assert (conflict.status_code, conflict.json()["type"]) == (409, "conflict")
    bad = post([white("t-w2", 0), white("t-w2", 1, response_logprobs=[0.0])])
    assert bad.status_code == 422
    assert bad.json()["field"].startswith("steps.1")
    assert studio.http.get("/api/v1/trajectories/t-w2").status_code == 404, "all or nothing"
    typo = post([{**white("t-w3", 0), "respnse_ids": []}])
    assert (typo.json()["field"], "response_ids" in typo.json()["hint"]) == ("steps.0.respnse_ids", True)


def test_annotations_overlay_and_undo(studio: ServeProcess) -> None:
    studio.http.post("/api/v1/steps", json={"steps": [white("t-a", 0, reward=0.25)]})
    target = {"trajectory_uid": "t-a"}
    reward = lambda: studio.http.get("/api/v1/trajectories/t-a").json()["reward"]  # noqa: E731
    assert reward() == 0.25
    action = studio.http.post(
        "/api/v1/annotations", json={"annotations": [{"target": target, "kind": "reward", "value": 0}]}
    ).json()
    assert reward() == 0.0, "zero is a reward"
    studio.http.post(f"/api/v1/actions/{action['action_uid']}/undo")
    assert reward() == 0.25
    wrong = {"target": target, "kind": "correct", "value": False}
    assert studio.http.post("/api/v1/annotations", json={"annotations": [wrong]}).status_code == 200
    steps = studio.http.get("/api/v1/steps", params={"filters": '{"trajectory_correct": false}'}).json()["steps"]
    assert [row["trajectory_uid"] for row in steps] == ["t-a"]
    for filters, field in (('{"finding": "empty"}', "filters.finding"), ("[1]", "filters"), ("{", "filters")):
        refused = studio.http.get("/api/v1/steps", params={"filters": filters})
        assert (refused.status_code, refused.json()["field"]) == (422, field)
    missing = studio.http.post(
        "/api/v1/annotations",
        json={"annotations": [{"target": {"trajectory_uid": "nobody"}, "kind": "quality", "value": "bad"}]},
    )
    assert missing.status_code == 404
    assert "nobody" in missing.json()["message"]


def test_plan_follows_labels_and_exports(studio: ServeProcess, tmp_path: Path) -> None:
    for name, value in (("t-p1", 1.0), ("t-p2", 0.0), ("t-p3", 1.0)):
        studio.http.post("/api/v1/steps", json={"steps": [white(name, 0, prompt_uid="p-plan")]})
        done = studio.http.post(f"/api/v1/trajectories/{name}/complete", json={"reward": value})
        assert done.status_code == 200, done.text
    body = {"view": {"filters": {"prompt_uid": "p-plan"}}, "recipe": {"algorithm": "grpo"}}
    plan = studio.http.post("/api/v1/plans", json=body).json()
    assert plan["totals"]["n_trajectories"] == 3
    (group,) = plan["groups"]
    advantages = {t["trajectory_uid"]: t["advantage"] for t in group["trajectories"]}
    mean, std = 2 / 3, (1 / 3) ** 0.5
    assert advantages["t-p1"] == pytest.approx((1 - mean) / (std + 1e-6))
    assert advantages["t-p2"] == pytest.approx((0 - mean) / (std + 1e-6))

    label = {"target": {"trajectory_uid": "t-p3"}, "kind": "quality", "value": "bad", "author": "me", "source": "human"}
    studio.http.post("/api/v1/annotations", json={"annotations": [label]})
    smaller = studio.http.post("/api/v1/plans", json=body).json()
    assert smaller["totals"]["n_trajectories"] == 2
    assert {t["trajectory_uid"] for g in smaller["groups"] for t in g["trajectories"]} == {"t-p1", "t-p2"}
    assert sum(e["n_trajectories"] for e in smaller["excluded"]) == 1

    result = studio.http.post("/api/v1/exports", json={**body, "format": "steps_parquet", "out": str(tmp_path)}).json()
    rows = pq.read_table(result["path"]).to_pylist()
    assert {row["trajectory_uid"] for row in rows} == {"t-p1", "t-p2"}
    assert all(list(row["response_ids"]) == [7, 8, 9] for row in rows)
    manifest = json.loads(Path(result["manifest_path"]).read_text())
    assert manifest["view"]["filters"] == {"prompt_uid": "p-plan"}


def test_cli_talks_to_the_owner_and_a_second_owner_is_refused(studio: ServeProcess, tmp_path: Path) -> None:
    data = studio.ready["data"]
    cli = [sys.executable, "-m", "core.cli"]
    lines = tmp_path / "steps.jsonl"
    lines.write_text(json.dumps(white("t-cli", 0)) + "\n")
    out = subprocess.run([*cli, "import", str(lines), "--data", data], capture_output=True, text=True, timeout=60)
    report = json.loads(out.stdout)
    assert (report["imported"], report["n_problems"]) == (1, 0), out.stderr
    assert studio.http.get("/api/v1/trajectories/t-cli").json()["steps"][0]["source"] == "import"
    second = subprocess.run([*cli, "serve", "--data", data, "--port", "0"], capture_output=True, text=True, timeout=60)
    assert second.returncode == 2
    assert f"process {studio.ready['pid']}" in second.stderr
    assert studio.base_url in second.stderr


def test_policy_versions_are_stamped(studio: ServeProcess) -> None:
    studio.http.post("/api/v1/policy", json={"version": 7, "event": "registered"})
    assert studio.http.get("/api/v1/policy").json()["version"] == 7
    answer = chat(studio, "version?", "/t-v/p-v/v1")
    assert step_of(studio, answer.headers["x-step-uid"])["policy_version"] == 7


def test_reading_pages_and_where(studio: ServeProcess) -> None:
    steps = [white("t-page", i) for i in range(7)]
    studio.http.post("/api/v1/steps", json={"steps": steps})
    seen: list[int] = []
    cursor = None
    while True:
        query = {"where": "trajectory_uid = 't-page'", "order": "step_index", "limit": 3}
        page = studio.http.get("/api/v1/steps", params={**query, **({"cursor": cursor} if cursor else {})}).json()
        seen += [step["step_index"] for step in page["steps"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == list(range(7))
    bad = studio.http.get("/api/v1/steps", params={"where": "1; drop table steps"})
    assert (bad.status_code, bad.json()["field"]) == (422, "where")
    group = studio.http.get("/api/v1/groups/p-white").json()
    assert group["prompt_uid"] == "p-white"


def test_stats_health_and_metrics(studio: ServeProcess) -> None:
    stats = studio.http.get("/api/v1/stats").json()
    wanted = {"n_steps", "n_trajectories", "n_groups", "n_dropped", "ingest_lag_s", "journal_bytes", "rates"}
    assert stats.keys() >= wanted
    assert stats["n_dropped"] == 0
    assert studio.http.get("/healthz").status_code == 200
    assert studio.http.get("/readyz").status_code == 200
    assert "claw_dropped_total 0" in studio.http.get("/metrics").text


def test_every_family_is_well_formed(studio: ServeProcess) -> None:
    answer = studio.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(answer.text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)) and all(family.type != "unknown" for family in families)
    assert all(family.documentation for family in families)
    (seconds,) = (family for family in families if family.name == "claw_call_seconds")
    assert seconds.type == "histogram"
    buckets = [(float(s.labels["le"]), s.value) for s in seconds.samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets) and [n for _, n in buckets] == sorted(n for _, n in buckets)
    assert buckets[-1] == (float("inf"), pytest.approx(next(s.value for s in seconds.samples if "count" in s.name)))


def test_the_list_of_metrics_is_what_the_gateway_tells(studio: ServeProcess) -> None:
    """docs/metrics.md, row by row: name, type, labels, and the meaning that begins with Prometheus' help."""
    n_before = studio.http.get("/api/v1/stats").json()["n_calls"]
    chat(studio, "for the counters")
    # The gateway process reports its counters a moment after the answer.
    eventually(lambda: studio.http.get("/api/v1/stats").json()["n_calls"] > n_before)
    answer = studio.http.get("/metrics").text
    listed = [line for line in (ROOT / "docs" / "metrics.md").read_text().splitlines() if line.startswith("| `")]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in listed]
    # These need a target; tests/survival/test_lost_disk.py reads them.
    rows = [row for row in rows if not row[0].startswith("claw_journal_unshipped")]
    # The parser takes a counter's suffix off: names and types as they stand in the text.
    types = dict(line.removeprefix("# TYPE ").split() for line in answer.splitlines() if line.startswith("# TYPE "))
    assert [(name, kind) for name, kind, _, _ in rows] == list(types.items())
    labels = {
        f"{family.name}_total" if family.type == "counter" else family.name: {
            label for sample in family.samples for label in sample.labels
        }
        for family in text_string_to_metric_families(answer)
    }
    # A family without samples, as that of other machines' writers, shows no labels.
    sampled = {family.name for family in text_string_to_metric_families(answer) if family.samples}
    assert {name: set(label.split()) for name, _, label, _ in rows if name.removesuffix("_total") in sampled} == {
        name: named for name, named in labels.items() if name.removesuffix("_total") in sampled
    }
    for name, _, _, meaning in rows:
        assert meaning.startswith(re.search(rf"^# HELP {name} (.*)$", answer, re.M)[1]), name


def test_claw_r1_endpoints(studio: ServeProcess) -> None:
    made = studio.http.post("/init_trajectory").json()
    base = made["base_url"].removeprefix(studio.base_url)
    studio.http.post(f"{base}/register_trajectory", json={"channel": "val", "metadata": {"policy_version": 1}})
    answer = chat(studio, "claw-r1 agent", base)
    step_of(studio, answer.headers["x-step-uid"])
    assert studio.http.post(f"{base}/complete_trajectory", json={"reward": 1.0}).status_code == 200
    trajectory = eventually(
        lambda: (t := studio.http.get(f"/api/v1/trajectories/{made['trajectory_uid']}").json())["complete"] and t
    )
    assert (trajectory["channel"], trajectory["reward"]) == ("val", 1.0)
    submitted = {**white("t-claw", 0), "rollout_log_probs": [-0.5, -0.5, -0.5]}
    del submitted["response_logprobs"]
    assert studio.http.post("/submit_steps?channel=train", json={"steps": [submitted]}).json() == {"accepted": 1}
    assert studio.http.get("/ready").status_code == 200
