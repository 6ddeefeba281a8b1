"""Completions and annotations return when they are durable; what reads the pool afterwards sees them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.client import StudioClient
from core.config import Settings
from core.records import steps_record
from core.service import Service
from tests.api.test_batches import RECIPE, wire_steps

N_REQUESTS = 32


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[Service]:
    service = Service.open(Settings(data_dir=tmp_path / "data", port=0, engine="http://127.0.0.1:9/v1"))
    yield service
    service.close()


@pytest.fixture
def http(studio: Service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{studio.base_url}/api/v1", timeout=60) as client:
        yield client


def produce(http: httpx.Client, group: str, n: int = 2) -> list[str]:
    """Attempts at a task, none of them complete; their uids."""
    steps = [{**step, "is_last": False} for k in range(n) for step in wire_steps(group, k)]
    assert http.post("/steps", json={"steps": steps}).status_code == 200
    return [f"{group}-{k}" for k in range(n)]


def test_a_completion_needs_no_ingest_and_the_next_read_waits_for_it(studio: Service, http: httpx.Client) -> None:
    uids = produce(http, "g")
    with studio.ingest._lock:  # nothing can be ingested meanwhile
        for uid in uids:
            answer = http.post(f"/trajectories/{uid}/complete", json={"reward": 1.0}, timeout=5)
            assert answer.status_code == 200, answer.text
        assert not studio.ingest.settled
        # Monitors and weight syncs read nothing that was completed, and must not wait for it.
        for path in ("/healthz", "/readyz", "/metrics", "/policy"):
            assert http.get(path, timeout=4).status_code == 200
    assert http.get(f"/trajectories/{uids[1]}").json()["complete"]


def test_staleness_counts_from_the_version_that_was_reported_before_the_fetch(
    studio: Service, http: httpx.Client
) -> None:
    uids = produce(http, "g")
    completions = [{"trajectory_uid": uid, "reward": float(number)} for number, uid in enumerate(uids)]
    http.post("/trajectories/complete", json={"completions": completions})
    http.post("/policy", json={"version": 7, "event": "sync_started"})
    assert http.get("/stats").status_code == 200 and studio.ingest.settled
    with studio.ingest._lock:  # nothing can be ingested meanwhile
        assert http.post("/policy", json={"version": 7, "event": "sync_finished"}, timeout=5).status_code == 200
        assert not studio.ingest.settled
    batch = http.post("/batches/fetch", json={"recipe": RECIPE, "consumer": "c"}).json()["batch_uid"]
    (row,) = http.get("/batches").json()["batches"]
    assert (row["batch_uid"], row["policy_version"]) == (batch, 7)


READS = {
    "the trajectory": ("GET", "/trajectories/g-1", None, lambda body: body["complete"] and body["reward"] == 1.0),
    "counts": ("GET", "/stats", None, lambda body: body["n_complete"] == 2),
    "a plan": ("POST", "/plans", {"recipe": RECIPE}, lambda body: body["totals"]["n_groups"] == 1),
    "a batch": ("POST", "/batches/fetch", {"recipe": RECIPE, "consumer": "c"}, lambda body: body["batch_uid"]),
    "SQL": (
        "POST",
        "/sql",
        {"sql": "SELECT count(*) FROM trajectory_state WHERE complete"},
        lambda body: "2" in str(body),
    ),
}


@pytest.mark.parametrize("read", READS)
def test_every_kind_of_read_sees_the_completion_before_it(studio: Service, http: httpx.Client, read: str) -> None:
    method, path, body, sees = READS[read]
    uids = produce(http, "g")
    completions = [{"trajectory_uid": uid, "reward": float(number)} for number, uid in enumerate(uids)]
    assert http.post("/trajectories/complete", json={"completions": completions}).json() == {"completed": 2}
    answer = http.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    assert sees(answer.json()), answer.text


def test_one_unknown_trajectory_refuses_all_completions_of_its_request(http: httpx.Client) -> None:
    (uid, _) = produce(http, "g")
    completions = [{"trajectory_uid": uid, "reward": 1.0}, {"trajectory_uid": "nobody", "reward": 1.0}]
    answer = http.post("/trajectories/complete", json={"completions": completions})
    assert answer.status_code == 404
    assert "completions.1.trajectory_uid" in answer.text
    assert not http.get(f"/trajectories/{uid}").json()["complete"]


def annotation(uid: str, value: float) -> dict[str, Any]:
    annotation = {"target": {"trajectory_uid": uid}, "kind": "reward", "value": value, "author": "a", "source": "api"}
    return {"annotations": [annotation]}


def test_concurrent_annotations_are_written_together_and_stay_apart(studio: Service, http: httpx.Client) -> None:
    uids = produce(http, "g", N_REQUESTS)
    transactions: list[int] = []
    annotate_each = studio.pool.labels.annotate_each

    def counted(groups: Any, **more: Any) -> list[str]:
        transactions.append(len(groups))
        time.sleep(0.05)
        return annotate_each(groups, **more)

    studio.pool.labels.annotate_each = counted  # type: ignore[method-assign]
    with ThreadPoolExecutor(N_REQUESTS) as threads:
        answers = list(
            threads.map(
                lambda pair: http.post("/annotations", json=annotation(pair[1], 100.0 + pair[0])), enumerate(uids)
            )
        )
    assert all(answer.status_code == 200 for answer in answers)
    assert sum(transactions) == N_REQUESTS
    assert len(transactions) < N_REQUESTS
    actions = [answer.json()["action_uid"] for answer in answers]
    assert len(set(actions)) == N_REQUESTS
    assert [http.get(f"/trajectories/{uid}").json()["reward"] for uid in uids] == [100.0 + n for n in range(N_REQUESTS)]
    # Each is an entry of the history of its own.
    assert http.post(f"/actions/{actions[7]}/undo").status_code == 200
    rewards = [http.get(f"/trajectories/{uid}").json()["reward"] for uid in uids[6:9]]
    assert (rewards[0], rewards[2]) == (106.0, 108.0)
    assert rewards[1] == 7.0  # of its last step


def test_a_wrong_annotation_fails_alone(studio: Service, http: httpx.Client) -> None:
    uids = produce(http, "g", 8)
    wanted_uids = [*uids[:4], "nobody", *uids[4:]]
    with ThreadPoolExecutor(len(wanted_uids)) as threads:
        answers = list(threads.map(lambda uid: http.post("/annotations", json=annotation(uid, 0.25)), wanted_uids))
    assert [answer.status_code for answer in answers] == [200] * 4 + [404] + [200] * 4
    assert {http.get(f"/trajectories/{uid}").json()["reward"] for uid in uids} == {0.25}


def test_a_step_answered_a_moment_ago_can_be_annotated(studio: Service, http: httpx.Client) -> None:
    produce(http, "g")
    step = {"step_uid": "new:0", "trajectory_uid": "new", "step_index": 0, "prompt_ids": [1], "response_ids": [2]}
    studio.ingest.stop(studio.journal.notice)  # it would win the race now and then
    studio.journal.append(steps_record(at=time.time(), steps=[step])).result()
    annotation = {"target": {"step_uid": "new:0"}, "kind": "reward", "value": 1.0, "author": "a", "source": "api"}
    assert http.post("/annotations", json={"annotations": [annotation]}).status_code == 200
    assert http.get("/steps/new:0").json()["reward"] == 1.0


def test_the_client_closes_many_at_once(studio: Service, http: httpx.Client) -> None:
    uids = produce(http, "g", 3)
    with StudioClient(studio.base_url) as client:
        client.complete_many({uids[0]: 1.0, uids[1]: None})
    whole = [http.get(f"/trajectories/{uid}").json() for uid in uids]
    assert [one["complete"] for one in whole] == [True, True, False]
    assert whole[0]["reward"] == 1.0
