"""The service opens and closes everything once, in order; nothing outlives it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from core.config import Settings
from core.errors import AlreadyOwned, StudioError
from core.journal import Journal
from core.owner import running_service
from core.records import policy_record
from core.service import Service, close_current, current, open_current
from tests.conftest import ServeProcess, eventually


def settings(tmp_path: Path, **over: object) -> Settings:
    return Settings(data_dir=tmp_path / "data", port=0, **over)  # type: ignore[arg-type]


def test_open_and_close_leave_no_thread_and_no_lock(tmp_path: Path) -> None:
    before = {t.name for t in threading.enumerate()}
    service = Service.open(settings(tmp_path))
    assert httpx.get(service.base_url + "/healthz", timeout=120).json()["ok"]
    assert running_service(tmp_path / "data") == {
        "pid": os.getpid(),
        "base_url": service.base_url,
        "pages_address": None,
    }
    service.close()
    service.close()
    assert running_service(tmp_path / "data") is None
    eventually(lambda: not ({t.name for t in threading.enumerate()} - before - {"AnyIO worker thread"}))
    with pytest.raises(httpx.ConnectError):
        httpx.get(service.base_url + "/healthz", timeout=120)
    Service.open(settings(tmp_path)).close()


def test_one_service_per_process_however_often_it_is_asked_for(tmp_path: Path) -> None:
    """Hot reload and further tabs run the same code again."""
    assert current() is None
    opened: list[Service] = []
    threads = [threading.Thread(target=lambda: opened.append(open_current(settings(tmp_path)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({id(service) for service in opened}) == 1
        assert current() is opened[0]
    finally:
        close_current()
    assert current() is None


def test_a_second_owner_is_refused_and_named(tmp_path: Path) -> None:
    service = Service.open(settings(tmp_path))
    try:
        with pytest.raises(AlreadyOwned) as refusal:
            Service.open(settings(tmp_path))
        assert str(os.getpid()) in refusal.value.message
        assert service.base_url in refusal.value.message
        assert httpx.get(service.base_url + "/healthz", timeout=120).status_code == 200, "the first one is unharmed"
    finally:
        service.close()


def test_a_failed_open_gives_everything_back(tmp_path: Path) -> None:
    first = Service.open(settings(tmp_path))
    taken = settings(tmp_path).model_copy(update={"data_dir": tmp_path / "other", "port": first.port})
    try:
        with pytest.raises(StudioError):
            Service.open(taken)
    finally:
        first.close()
    Service.open(taken).close()


def test_the_network_needs_a_key(tmp_path: Path) -> None:
    with pytest.raises(StudioError) as refusal:
        Service.open(settings(tmp_path, host="0.0.0.0"))
    assert refusal.value.field == "api_key"


def test_with_a_key_every_call_needs_it(tmp_path: Path) -> None:
    service = Service.open(settings(tmp_path, api_key="right"))
    try:
        get = lambda key: httpx.get(service.base_url + "/api/v1/stats", headers={"Authorization": key}, timeout=120)  # noqa: E731
        assert get("").status_code == get("Bearer wrong").status_code == 401
        assert get("Bearer right").status_code == 200
        assert httpx.get(service.base_url + "/healthz", timeout=120).status_code == 200
        assert httpx.post(service.base_url + "/v1/chat/completions", json={}, timeout=120).status_code == 401
    finally:
        service.close()


def test_serve_ends_cleanly_on_sigterm_with_its_children(serve: Callable[..., ServeProcess]) -> None:
    process = serve("local")
    answer = process.http.post(
        "/v1/chat/completions",
        json={"model": "claw-local", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    children = subprocess.run(["pgrep", "-P", str(process.ready["pid"])], capture_output=True, text=True).stdout.split()
    assert children, "the embedded engine runs in its own process"
    assert process.stop() == 0
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_the_embedded_engine_dies_with_a_killed_service(serve: Callable[..., ServeProcess]) -> None:
    process = serve("local")
    process.http.post(
        "/v1/chat/completions",
        json={"model": "claw-local", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
        timeout=120,
    )
    children = subprocess.run(["pgrep", "-P", str(process.ready["pid"])], capture_output=True, text=True).stdout.split()
    process.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_a_report_that_a_killed_process_left_in_the_journal_counts(tmp_path: Path) -> None:
    """Calls after the restart are stamped with it, and the embedded engine starts with its weights."""
    chosen = settings(tmp_path, engine="http://127.0.0.1:9/v1")
    Service.open(chosen).close()
    journal = Journal(chosen.journal_dir)
    for version, event in ((7, "sync_finished"), (8, "sync_started")):
        metadata = {"path": f"/weights/{version}", "engines": ["local"]}
        journal.append(policy_record(at=float(version), version=version, event=event, metadata=metadata)).result()
    journal.close()
    with closing(Service.open(chosen)) as service:
        assert service.policy.version == 7 and not service.policy.syncing
        assert service.policy.weights_in_force("local") == ("/weights/7", 7)
        assert [event.version for event in service.policy.history] == [7, 8]
