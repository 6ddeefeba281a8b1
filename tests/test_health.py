"""Health means that calls are captured and arrive: threads that end, descriptors and disks that run out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest

from core.config import Settings
from core.journal import damages
from core.service import Service
from tests.conftest import eventually
from tests.left_out import only_in_ci


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    opened = Service.open(Settings(data_dir=tmp_path / "data", port=0))
    yield opened
    opened.close()


def submit(service: Service, uid: str) -> None:
    step = {"trajectory_uid": uid, "prompt_ids": [1, 2], "response_ids": [3], "response_logprobs": [-0.5]}
    response = httpx.post(
        service.base_url + "/api/v1/steps", json={"steps": [{"step_uid": uid, "step_index": 0, **step}]}, timeout=120
    )
    assert response.status_code == 200, response.text


def healthz(service: Service) -> httpx.Response:
    return httpx.get(service.base_url + "/healthz", timeout=120)


class Ending(BaseException):
    """Nobody catches it: a thread in which it is raised ends."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_is_started_again_and_told(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(service, "first")
    assert healthz(service).json() == {"ok": True, "ingest_error": None, "pool_error": None, "problems": []}

    def end(*_: object) -> None:
        monkeypatch.undo()
        raise Ending

    monkeypatch.setattr(service.ingest._journal, "read", end)
    eventually(lambda: service.supervisor.n_ends["the ingest thread"] == 1)
    health = healthz(service).json()
    assert not health["ok"]
    assert [one["part"] for one in health["problems"]] == ["thread"]
    assert "the ingest thread" in health["problems"][0]["message"]
    assert httpx.get(service.base_url + "/api/v1/stats", timeout=120).json()["problems"] == health["problems"]
    assert (
        'claw_thread_ends_total{thread="the ingest thread"} 1'
        in httpx.get(service.base_url + "/metrics", timeout=120).text
    )
    assert any("ingest thread" in finding["message"] for finding in service.health())
    service.journal.append(
        json.dumps({"kind": "complete", "v": 1, "at": time.time(), "trajectory_uid": "first"}).encode()
    ).result(20)
    eventually(lambda: service.pool.trajectories.get("first")["complete"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_journals_writer_comes_back_and_answers_what_waits(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        monkeypatch.undo()
        raise Ending

    monkeypatch.setattr(service.journal, "_commit", end)
    assert service.journal.append(b"{}").exception(20) is not None
    submit(service, "after")
    assert service.supervisor.n_ends["the journal's writer"] == 1
    eventually(lambda: service.pool.steps.count() == 1)


def test_lag_is_measured_at_the_journals_end(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ingest that hangs does nothing about its own lag."""
    submit(service, "first")
    with service.ingest._lock:
        record = {"kind": "complete", "v": 1, "at": time.time() - 100, "trajectory_uid": "first"}
        service.journal.append(orjson.dumps(record)).result(20)
        assert 100 <= service.ingest.lag_s < 130
        monkeypatch.setattr("core.health.STALL_S", 0.1)
        service.problems()
        time.sleep(0.2)
        response = healthz(service)
        assert response.status_code == 503
        assert "waiting for" in response.json()["ingest_error"]
    eventually(lambda: service.ingest.lag_s == 0.0)
    assert healthz(service).status_code == 200


NO_DESCRIPTORS = """
import json, os, resource, sys, time
from pathlib import Path
import httpx
from core.config import Settings
from core.service import Service
service = Service.open(Settings(data_dir=Path(sys.argv[1]), port=0))
def submit(uid):
    step = {"step_uid": uid, "step_index": 0, "trajectory_uid": uid, "prompt_ids": [1], "response_ids": [2]}
    record = {"kind": "steps", "v": 1, "at": time.time(), "steps": [step]}
    service.journal.append(json.dumps(record).encode()).result(20)
submit("before")
while service.pool.steps.count() < 1: time.sleep(0.01)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
taken = []
try:
    while True: taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
submit("meanwhile")
deadline, told, lag = time.monotonic() + 2, [], 0.0
while time.monotonic() < deadline:
    told += service.problems(); lag = max(lag, service.ingest.lag_s); time.sleep(0.1)
for fd in taken: os.close(fd)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
submit("after")
deadline = time.monotonic() + 30
while service.pool.steps.count() < 3 and time.monotonic() < deadline: time.sleep(0.05)
print(json.dumps({"steps": service.pool.steps.count(), "parts": sorted({one["part"] for one in told}), "lag": lag,
    "message": next((one["message"] for one in told if one["part"] == "ingest"), None),
    "well": not service.problems(), "healthz": httpx.get(service.base_url + "/healthz").status_code}), flush=True)
service.close()
"""


def test_two_seconds_without_descriptors_stop_nothing_for_good(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTORS, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["steps"] == 3
    assert "ingest" in report["parts"]
    assert "Too many open files" in report["message"]
    assert report["lag"] > 0.5
    assert (report["well"], report["healthz"]) == (True, 200)


def mounted(path: Path, size: str) -> bool:
    path.mkdir()
    return (
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], capture_output=True).returncode
        == 0
    )


@pytest.mark.parametrize("gateways", [0, 2])
def test_a_full_disk_is_told_before_a_call_fails_and_its_end_too(tmp_path: Path, gateways: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    if not mounted(data / "journal", "8m"):
        pytest.skip("this machine lets nobody mount a small disk")
    try:
        service = Service.open(Settings(data_dir=data, port=0, gateways=gateways))
        try:
            submit(service, "first")
            assert healthz(service).status_code == 200
            filler = data / "journal" / "filler"
            with pytest.raises(OSError, match="No space"), filler.open("wb") as file:
                while True:
                    file.write(bytes(4096))
                    file.flush()
            response = eventually(lambda: (now := healthz(service)).status_code == 503 and now)
            assert "No space left" in response.json()["problems"][0]["message"]
            assert httpx.get(service.base_url + "/readyz", timeout=120).status_code == 503
            assert "claw_journal_failing 1" in httpx.get(service.base_url + "/metrics", timeout=120).text
            filler.unlink()
            eventually(lambda: healthz(service).status_code == 200)
            submit(service, "second")
            eventually(lambda: service.pool.steps.count() == 2)
        finally:
            service.close()
    finally:
        subprocess.run(["umount", "-l", data / "journal"], check=True)


def test_damage_shows_in_every_place(tmp_path: Path) -> None:
    journal = tmp_path / "data" / "journal"
    service = Service.open(Settings(data_dir=tmp_path / "data", port=0))
    try:
        service.ingest.stop()
        for n in range(5):
            uid = f"s{n}"
            step = {"step_uid": uid, "step_index": 0, "trajectory_uid": uid, "prompt_ids": [1], "response_ids": [2]}
            record = {"kind": "steps", "v": 1, "at": time.time(), "steps": [step]}
            service.journal.append(orjson.dumps(record)).result(20)
        (segment,) = journal.glob("*.seg")
        whole = bytearray(segment.read_bytes())
        at = whole.find(b'"s0"') + 1
        whole[at] ^= 1
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(whole[at : at + 1])
        service.ingest.start()
        submit(service, "s5")
        assert eventually(lambda: service.pool.steps.count() == 5)
        (damage,) = damages(journal)
        (row,) = service.pool.journal.damages()
        assert (row["segment"], row["journal_offset"]) == (segment.name, damage.offset)
        (kept,) = journal.glob("*.bad")
        assert kept.read_bytes() == bytes(whole[damage.begin : damage.end])
        response = healthz(service)
        assert (response.status_code, response.json()["ok"]) == (200, False), "calls are captured and arrive"
        assert "claw_journal_damages 1" in httpx.get(service.base_url + "/metrics", timeout=120).text
        assert httpx.get(service.base_url + "/api/v1/stats", timeout=120).json()["n_journal_damages"] == 1
        assert any(segment.name in finding["message"] for finding in service.health())
        env = {**os.environ, "CLAW_STUDIO_DATA_DIR": str(tmp_path / "data")}
        for options in ([], ["--deep"]):
            command = [sys.executable, "-m", "core.cli", "doctor", *options]
            done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120)
            assert done.returncode == 1, done.stdout + done.stderr
            assert segment.name in done.stdout
    finally:
        service.close()


def test_a_missing_segment_fails_the_deep_check(tmp_path: Path) -> None:
    service = Service.open(Settings(data_dir=tmp_path / "data", port=0, segment_bytes=1 << 16))
    try:
        submit(service, "s0")
        (segment,) = (tmp_path / "data" / "journal").glob("*.seg")
        segment.unlink()
        env = {**os.environ, "CLAW_STUDIO_DATA_DIR": str(tmp_path / "data")}
        command = [sys.executable, "-m", "core.cli", "doctor", "--deep"]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120)
        assert done.returncode == 1
        assert f"{segment.name}" in done.stdout
        assert "the segment is missing" in done.stdout
    finally:
        service.close()


STOPPED = """
import sys, time
from pathlib import Path
from core.config import Settings
from core.service import Service
service = Service.open(Settings(data_dir=Path(sys.argv[1]), port=0))
print(service.base_url, flush=True)
sys.stdin.read()
service.close()
"""


@pytest.mark.parametrize("stopped_s", [1, pytest.param(30, marks=only_in_ci("waits for half a minute"))])
def test_a_service_that_was_stopped_for_a_while_goes_on(tmp_path: Path, stopped_s: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        base = process.stdout.readline().strip()
        assert httpx.get(base + "/healthz", timeout=120).json()["ok"]
        process.send_signal(signal.SIGSTOP)
        time.sleep(stopped_s)
        process.send_signal(signal.SIGCONT)
        eventually(lambda: httpx.get(base + "/healthz", timeout=120).json()["ok"])
        step = {"step_uid": "s", "step_index": 0, "trajectory_uid": "t", "prompt_ids": [1], "response_ids": [2]}
        assert httpx.post(base + "/api/v1/steps", json={"steps": [step]}, timeout=120).status_code == 200
        eventually(lambda: httpx.get(base + "/api/v1/stats", timeout=120).json()["n_steps"] == 1)
    finally:
        process.send_signal(signal.SIGCONT)
        process.stdin.close()
        assert process.wait(60) == 0
        process.stdout.close()


@pytest.mark.parametrize("jump_s", [86400.0, -86400.0])
def test_a_clock_that_jumps_a_day_loses_nothing(tmp_path: Path, jump_s: float) -> None:
    shift = [0.0]
    service = Service.open(Settings(data_dir=tmp_path / "data", port=0), clock=lambda: time.time() + shift[0])
    try:
        for n in range(6):
            shift[0] = jump_s if n in (2, 3) else 0.0
            submit(service, f"s{n}")
        eventually(lambda: service.pool.steps.count() == 6)
        assert service.ingest.lag_s == 0.0
        assert healthz(service).json()["ok"]
    finally:
        service.close()
