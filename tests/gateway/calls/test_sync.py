"""A weight sync that nobody finishes: a trainer that died must not stop capture."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from core.gateway.calls.policy import PolicyState
from core.serving.process import EngineProcess
from tests.conftest import ServeProcess, eventually


def test_a_sync_expires_and_calls_carry_both_versions(gateway, upstream):
    now = [100.0]
    gateway.policy._monotonic = lambda: now[0]
    gateway.policy.apply("registered", 3, at=1.0)
    gateway.policy.apply("sync_started", 4, at=2.0)
    assert gateway.policy.syncing
    now[0] += 119.9
    assert (gateway.policy.syncing, gateway.policy.sync_expired) == (True, False)
    now[0] += 0.2
    assert (gateway.policy.syncing, gateway.policy.sync_expired) == (False, True)
    assert gateway.policy.sync_json()["state"] == "expired"
    assert gateway.chat().status_code == 200
    record = gateway.records()[0]
    assert (record["policy_version"], record["policy_version_end"]) == (3, 4)
    # The trainer was only slow.
    gateway.policy.apply("sync_finished", 4, at=3.0)
    assert gateway.policy.sync_json() is None
    gateway.chat()
    record = gateway.records()[1]
    assert (record["policy_version"], record["policy_version_end"]) == (4, 4)


def test_a_call_that_waits_goes_on_when_the_sync_expires(make_gateway, upstream):
    gateway = make_gateway(upstream)
    gateway.policy.sync_timeout_s = 0.4
    gateway.policy.apply("sync_started", 1, at=1.0)
    began = time.monotonic()
    assert gateway.chat().status_code == 200
    assert time.monotonic() - began >= 0.3
    assert gateway.stats.snapshot()["n_in_flight"] == 0


def test_a_call_that_ends_within_a_sync_carries_the_weights_that_its_engine_reports():
    """The sync no longer waits for it: the engine may have loaded the new weights, and the sync is not finished."""
    policy = PolicyState()
    policy.apply("registered", 3, at=1.0)
    assert [asyncio.run(policy.start(1.0)) for _ in range(4)] == [3] * 4
    policy.apply("sync_started", 4, at=2.0)
    assert (policy.finish(4), policy.finish(3), policy.finish(None)) == (4, 3, 3)
    policy.end_sync()
    # No sync: an engine's own counter says nothing.
    assert policy.finish(7) == 3


def test_ending_a_sync_lets_waiting_calls_go_with_the_version_before(gateway, upstream):
    gateway.policy.apply("registered", 3, at=1.0)
    gateway.policy.apply("sync_started", 4, at=2.0)
    answers: list[httpx.Response] = []
    worker = threading.Thread(target=lambda: answers.append(gateway.chat()))
    worker.start()
    eventually(lambda: gateway.policy._held)
    assert gateway.policy.end_sync()
    worker.join(30)
    assert answers[0].status_code == 200
    record = gateway.records()[0]
    assert (record["policy_version"], record["policy_version_end"]) == (3, 3)
    assert not gateway.policy.end_sync()


def test_another_process_takes_a_sync_over_as_old_as_it_is():
    now = [50.0]
    first = PolicyState(monotonic=lambda: now[0], sync_timeout_s=10)
    first.apply("sync_started", 2, at=1.0)
    now[0] += 7
    second = PolicyState(monotonic=lambda: now[0] + 1e6, sync_timeout_s=10)
    second.resume_sync(first.sync_json())
    assert second.syncing
    now[0] += 3.1
    assert second.sync_expired and first.sync_expired


@pytest.mark.parametrize("gateways", [0, 2])
def test_a_dead_trainer_in_the_whole_service(serve: Callable[..., ServeProcess], tmp_path: Path, gateways: int) -> None:
    """Begun, never finished: calls go on after the setting's time, everything says so, and it can be ended."""
    (tmp_path / "script.json").write_text('{"rules": [{"reply": {"content": "well"}}]}')
    env = {"CLAW_STUDIO_POLICY_SYNC_TIMEOUT_S": "1", "CLAW_STUDIO_GATEWAYS": str(gateways)}
    with EngineProcess.start("scripted", args=["--script", tmp_path / "script.json"]) as engine:
        studio = serve(engine.base_url, env=env)
        ask = {"model": "m", "messages": [{"role": "user", "content": "q"}]}

        def stamped() -> list[tuple[int | None, int | None]]:
            for _ in range(4):
                assert httpx.post(f"{studio.base_url}/v1/chat/completions", json=ask, timeout=60).status_code == 200
            rows = eventually(
                lambda: r if len(r := studio.http.get("/api/v1/steps").json()["steps"]) == seen + 4 else None
            )
            return [(row["policy_version"], row["policy_version_end"]) for row in rows[seen:]]

        seen = 0
        studio.http.post("/api/v1/policy", json={"version": 1, "event": "registered"})
        studio.http.post("/api/v1/policy", json={"version": 2, "event": "sync_started"})
        policy = studio.http.get("/api/v1/policy").json()
        assert policy["syncing"] and policy["sync"]["state"] == "running"
        assert studio.http.get("/readyz").status_code == 503
        assert set(stamped()) == {(1, 2)}
        assert studio.http.get("/api/v1/stats").json()["policy_sync"]["state"] == "expired"
        assert "claw_policy_sync_expired 1" in studio.http.get("/metrics").text
        assert studio.http.get("/readyz").status_code == 200
        ended = studio.http.delete("/api/v1/policy/sync")
        assert ended.status_code == 200 and ended.json()["sync"] is None and ended.json()["version"] == 1
        seen = 4
        assert set(stamped()) == {(1, 1)}
        refused = studio.http.delete("/api/v1/policy/sync")
        assert (refused.status_code, refused.json()["type"]) == (409, "conflict")
