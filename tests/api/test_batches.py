"""Batches over plain HTTP: long poll, formats, retries; and trainers as processes that are killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ServeProcess, eventually

RECIPE = {"algorithm": "grpo", "n_rollouts": 2, "batch_size": 1}


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[ServeProcess]:
    process = ServeProcess(tmp_path / "data", "http://127.0.0.1:9/v1")
    yield process
    assert process.stop() == 0


def wire_steps(group: str, rollout: int, n_steps: int = 2) -> list[dict[str, Any]]:
    uid = f"{group}-{rollout}"
    prompt, steps = [1, 2, 3], []
    for k in range(n_steps):
        response = [10 + k, 20 + rollout]
        steps.append(
            {
                "step_uid": f"{uid}.{k}",
                "trajectory_uid": uid,
                "prompt_uid": group,
                "step_index": k,
                "prompt_ids": prompt,
                "response_ids": response,
                "response_logprobs": [-0.5, -0.25],
                "reward": float(rollout) if k == n_steps - 1 else None,
                "is_last": k == n_steps - 1,
                "policy_version": 3,
            }
        )
        prompt = [*prompt, *response, 99]
    return steps


def produce(studio: ServeProcess, groups: list[str], *, n: int = 2) -> None:
    steps = [step for group in groups for k in range(n) for step in wire_steps(group, k)]
    answer = studio.http.post("/api/v1/steps", json={"steps": steps})
    assert answer.status_code == 200, answer.text


def fetch(studio: ServeProcess, **body: Any) -> dict[str, Any]:
    answer = studio.http.post("/api/v1/batches/fetch", json={"consumer": "a", "recipe": RECIPE, **body})
    assert answer.status_code == 200, answer.text
    batch: dict[str, Any] = answer.json()
    return batch


def test_a_batch_holds_what_the_plan_says_in_every_format(studio: ServeProcess) -> None:
    produce(studio, ["A", "B"])
    planned = studio.http.post("/api/v1/plans", json={"recipe": RECIPE}).json()
    batch = fetch(studio)
    assert [one["prompt_uid"] for one in batch["groups"]] == [one["prompt_uid"] for one in planned["groups"]] == ["A"]
    assert batch["totals"]["n_tokens"] == planned["totals"]["n_tokens"]
    uids = [uid for one in planned["groups"][0]["trajectories"] for uid in one["step_uids"]]
    assert [step["step_uid"] for step in batch["steps"]] == uids
    sent = {step["step_uid"]: step for k in range(2) for step in wire_steps("A", k)}
    for step in batch["steps"]:
        for name in ("prompt_ids", "response_ids", "response_logprobs", "policy_version"):
            assert step[name] == sent[step["step_uid"]][name]
    advantages = [one["advantage"] for one in planned["groups"][0]["trajectories"]]
    assert [step["advantage"] for step in batch["steps"]] == [advantages[0]] * 2 + [advantages[1]] * 2
    assert advantages == pytest.approx([-(0.5**0.5), 0.5**0.5], rel=1e-5)

    uid = batch["batch_uid"]
    answer = studio.http.get(f"/api/v1/batches/{uid}/file")
    table = pa.ipc.open_stream(BytesIO(answer.content)).read_all()
    assert table.to_pylist() == batch["steps"]
    assert json.loads(table.schema.metadata[b"batch"])["batch_uid"] == uid
    parquet = pq.read_table(BytesIO(studio.http.get(f"/api/v1/batches/{uid}/file?format=steps_parquet").content))
    assert parquet["step_uid"].to_pylist() == uids
    rows = pq.read_table(BytesIO(studio.http.get(f"/api/v1/batches/{uid}/file?format=trl_sft").content)).to_pylist()
    assert [row["input_ids"] for row in rows] == [step["prompt_ids"] + step["response_ids"] for step in batch["steps"]]
    assert studio.http.get(f"/api/v1/batches/{uid}/file?format=nothing").status_code == 422

    second = studio.http.post("/api/v1/batches/fetch", json={"consumer": "b", "recipe": RECIPE, "format": "arrow"})
    streamed = pa.ipc.open_stream(BytesIO(second.content)).read_all()
    assert set(streamed["prompt_uid"].to_pylist()) == {"B"}
    assert np.isfinite(streamed["advantage"].to_numpy()).all()
    held = studio.http.get(f"/api/v1/batches/{second.headers['x-batch-uid']}").json()
    assert (held["state"], held["consumer"], held["totals"]["n_steps"]) == ("leased", "b", 4)

    empty = fetch(studio, consumer="c")
    assert empty["batch_uid"] is None and empty["missing"] == "0 of 1 prompt groups are ready"
    assert [(one["reason"], one["n_groups"]) for one in empty["excluded"]] == [("in_use", 2)]


def test_a_fetch_waits_for_readiness_and_others_are_served_meanwhile(studio: ServeProcess) -> None:
    got: dict[str, Any] = {}

    def wait() -> None:
        answer = httpx.post(
            f"{studio.base_url}/api/v1/batches/fetch",
            json={"consumer": "a", "recipe": RECIPE, "wait_s": 60, "request_id": "r"},
            timeout=90,
        )
        got.update(answer.json())

    # More waiters than the service has worker threads: waiting must not hold one.
    waiters = [threading.Thread(target=wait)]
    waiters += [
        threading.Thread(
            target=httpx.post,
            args=(f"{studio.base_url}/api/v1/batches/fetch",),
            kwargs={"json": {"consumer": f"x{k}", "channel": "never", "wait_s": 3}, "timeout": 60},
        )
        for k in range(48)
    ]
    for thread in waiters:
        thread.start()
    time.sleep(0.5)
    produce(studio, ["A"], n=1)
    time.sleep(0.5)
    assert got == {}
    studio.http.post("/api/v1/steps", json={"steps": wire_steps("A", 1)})
    eventually(lambda: got.get("batch_uid"), timeout_s=30)
    assert fetch(studio, request_id="r")["batch_uid"] == got["batch_uid"]
    for thread in waiters:
        thread.join(60)


def test_words_about_a_batch(studio: ServeProcess) -> None:
    produce(studio, ["A", "B"])
    uid = fetch(studio)["batch_uid"]
    post = studio.http.post
    assert post(f"/api/v1/batches/{uid}/renew", json={"lease_s": 9000}).json()["state"] == "leased"
    assert post(f"/api/v1/batches/{uid}/ack", json={"consumer": "b"}).status_code == 409
    wrong = post(f"/api/v1/batches/{uid}/ack", json={"steps": [{"step_uid": "B-0.0", "metrics": {"kl": 1.0}}]})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "steps.0.step_uid")
    body = {
        "consumer": "a",
        "update": 5,
        "metrics": {"loss": 0.25},
        "steps": [{"step_uid": "A-0.0", "metrics": {"kl": 1.0}}],
    }
    for _ in range(2):
        assert post(f"/api/v1/batches/{uid}/ack", json=body).json()["update_index"] == 5
    post(f"/api/v1/batches/{uid}/metrics", json={"update": 5, "metrics": {"entropy": 2.0}})
    batch = studio.http.get(f"/api/v1/batches/{uid}").json()
    assert [(one["name"], one["value"]) for one in batch["metrics"]] == [("loss", 0.25), ("entropy", 2.0)]
    assert [(one["step_uid"], one["name"]) for one in batch["step_metrics"]] == [("A-0.0", "kl")]
    assert [event["event"] for event in batch["events"]] == ["leased", "renewed", "acked"]
    step = studio.http.get("/api/v1/steps/A-0.0").json()
    assert [(one["batch_uid"], one["state"], one["update_index"]) for one in step["consumption"]] == [(uid, "acked", 5)]
    assert post("/api/v1/batches/none/ack", json={}).status_code == 404
    assert [one["batch_uid"] for one in studio.http.get("/api/v1/batches").json()["batches"]] == [uid]


def test_recipes_by_version_and_channel(studio: ServeProcess) -> None:
    http = studio.http
    assert http.put("/api/v1/recipes/main", json={"recipe": RECIPE}).json()["version"] == 1
    changed = http.put("/api/v1/recipes/main", json={"recipe": {**RECIPE, "batch_size": 2}})
    version = changed.json()["version"]
    changes = {
        one["field"]: (one["a"], one["b"])
        for one in http.get(f"/api/v1/recipes/main/diff?a=1&b={version}").json()["changes"]
    }
    assert changes == {"batch_size": (1, 2)}
    assert (
        http.put("/api/v1/channels/train/recipe", json={"name": "main", "version": 1}).json()["active"]["version"] == 1
    )
    produce(studio, ["A"])
    batch = http.post("/api/v1/batches/fetch", json={"consumer": "a"}).json()
    assert (batch["recipe_name"], batch["recipe_version"], batch["totals"]["n_groups"]) == ("main", 1, 1)
    assert http.put("/api/v1/channels/train/recipe", json={"name": "none"}).status_code == 404
    assert http.put("/api/v1/recipes/bad", json={"recipe": {"algorithm": "grop"}}).json()["field"] == "recipe.algorithm"


TRAINER = """
import json, os, sys, time, urllib.request
base, name = sys.argv[1:]
def post(path, **body):
    request = urllib.request.Request(base + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=30))
while True:
    batch = post("/api/v1/batches/fetch", consumer=name, recipe=json.loads(os.environ["RECIPE"]), lease_s=1.5, wait_s=1)
    if batch["batch_uid"] is None:
        continue
    print(batch["groups"][0]["prompt_uid"], flush=True)
    time.sleep(0.05)
    post(f"/api/v1/batches/{batch['batch_uid']}/ack", consumer=name)
"""


def test_two_trainers_with_kills_lose_no_group_and_double_none(studio: ServeProcess) -> None:
    groups = [f"g{k:02d}" for k in range(24)]

    def trainer(name: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", TRAINER, studio.base_url, name],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "RECIPE": json.dumps(RECIPE)},
        )

    def acked() -> list[str]:
        batches = studio.http.get("/api/v1/batches?limit=1000").json()["batches"]
        uids = [one["batch_uid"] for one in batches if one["state"] == "acked"]
        return [studio.http.get(f"/api/v1/batches/{uid}").json()["groups"][0]["prompt_uid"] for uid in uids]

    running = {name: trainer(name) for name in ("a", "b")}
    try:
        for number in range(4):
            produce(studio, groups[number * 6 : number * 6 + 6])
            time.sleep(0.3)
            name = "ab"[number % 2]
            running[name].send_signal(signal.SIGKILL)
            running[name].wait(30)
            running[name] = trainer(name)
        eventually(lambda: len(acked()) == len(groups), timeout_s=60, every_s=0.5)
    finally:
        for process in running.values():
            process.kill()
            process.wait(30)
    assert sorted(acked()) == groups


def test_values_of_a_critic_computed_elsewhere(studio: ServeProcess) -> None:
    produce(studio, ["A"])
    gae = {"algorithm": "step_gae", "value_model": "critic"}
    before = studio.http.post("/api/v1/plans", json={"recipe": gae}).json()
    assert before["totals"]["n_steps"] == 0 and "A-0.0" in before["lacks"][0]
    uids = [f"A-{k}.{i}" for k in range(2) for i in range(2)]
    body = {"model": "critic", "values": [{"step_uid": uid, "value": 0.5} for uid in uids]}
    assert studio.http.post("/api/v1/values", json=body).json() == {"model": "critic", "accepted": 4}
    assert studio.http.get("/api/v1/values").json() == {"models": [{"model": "critic", "n_steps": 4}]}
    assert studio.http.post("/api/v1/plans", json={"recipe": gae}).json()["totals"]["n_steps"] == 4
    wrong = studio.http.post("/api/v1/values", json={"model": "critic", "values": [{"step_uid": "x", "value": 1.0}]})
    assert (wrong.status_code, wrong.json()["field"]) == (404, "step_uid")
    missing = studio.http.post("/api/v1/values/compute", json={"model_dir": "/nowhere", "name": "c"})
    assert (missing.status_code, missing.json()["field"]) == (422, "model_dir")
