"""Disks that take nothing more: the agent is told in its dialect, and what it was answered is there."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.journal import read_records
from core.records import parse
from tests.gateway.upstream import Upstream, chat_answer

ROOT = Path(__file__).resolve().parents[3]
OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount"]
PATHS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "x" * 3000}]},
    "completions": {"prompt": "x" * 3000},
    "responses": {"input": "x" * 3000},
    "messages": {"max_tokens": 99, "messages": [{"role": "user", "content": "x" * 3000}]},
}


class Served:
    """A gateway in a process of its own, so that only its disk is full."""

    def __init__(self, directory: Path, upstream: Upstream, *before: str, limit: int | None = None) -> None:
        def limited() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        self.process = subprocess.Popen(
            [*before, sys.executable, "-m", "tests.gateway.serve_alone", str(directory), upstream.base_url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=limited,
        )
        assert self.process.stdout is not None
        port = json.loads(self.process.stdout.readline())["port"]
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        self.answered: list[str] = []
        self.refused: list[tuple[str, bool, httpx.Response]] = []

    def call(self, path: str, *, stream: bool = False) -> bool:
        """One call; whether its answer came whole."""
        response = self.http.post(f"/v1/{path}", json={"model": "m", "stream": stream, **PATHS[path]})
        ends = {"chat/completions": "[DONE]", "completions": "[DONE]", "responses": "response.completed"}
        whole = response.status_code == 200 and (not stream or ends.get(path, "message_stop") in response.text)
        if whole:
            self.answered.append(response.headers["x-step-uid"])
        else:
            self.refused.append((path, stream, response))
        return whole

    def until_refused(self, n: int, limit_s: float = 60.0) -> None:
        """Call in every way until ``n`` of each was refused."""
        deadline = time.monotonic() + limit_s
        while len(self.refused) < n and time.monotonic() < deadline:
            for path in PATHS:
                for stream in (False, True):
                    self.call(path, stream=stream)
        assert len(self.refused) >= n

    def check_refusals(self, why: str = "") -> None:
        for path, stream, response in self.refused:
            assert response.status_code == 507, (path, stream, response.text)
            error = response.json()["error"]
            assert "can't be written" in error["message"]
            assert why in error["message"]
            assert error["type"] == ("api_error" if path == "messages" else "capture_not_durable")

    def stop(self) -> None:
        self.http.close()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


def stored(directory: Path) -> list[str]:
    return [parse(record.payload)["step_uid"] for record in read_records(directory, {})]


@pytest.fixture
def serve_at(upstream: Upstream) -> Iterator[Callable[..., Served]]:
    upstream.reply = lambda seen: (
        chat_answer() if seen.path == "chat/completions" else {**chat_answer(), "choices": [{"text": "x", "index": 0}]}
    )
    started: list[Served] = []

    def start(*args: Any, **kwargs: Any) -> Served:
        started.append(Served(*args, **kwargs))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def test_a_file_that_may_not_grow(serve_at, upstream, tmp_path):
    served = serve_at(tmp_path / "journal", upstream, limit=120_000)
    # Segments after the first one are made anew, so this disk goes on: every other batch fails once.
    served.until_refused(1)
    served.check_refusals()
    for _ in range(5):
        served.call("chat/completions")
    uids = stored(tmp_path / "journal")
    assert set(served.answered) <= set(uids)
    assert len(uids) == len(set(uids))
    # What was refused is not half there.
    assert set(uids) == set(served.answered)


def own_mounts_work() -> bool:
    try:
        done = subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


mounts = pytest.mark.skipif(not own_mounts_work(), reason="this machine lets nobody mount a small disk of their own")


@mounts
def test_a_disk_that_is_full_then_read_only_and_then_well_again(serve_at, upstream, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    script = 'mount -t tmpfs -o size=300k tmpfs "$0" && exec "$@"'
    served = serve_at(disk / "journal", upstream, *OWN_MOUNTS, "sh", "-c", script, str(disk))
    inside = Path(f"/proc/{served.process.pid}/root{disk}")

    def mount(*command: str) -> None:
        enter = ["nsenter", "-t", str(served.process.pid), "--user", "--preserve-credentials", "--mount"]
        subprocess.run([*enter, *command], check=True, timeout=60)

    workers = [threading.Thread(target=lambda: served.call("messages", stream=True)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(served.answered) == 3
    served.until_refused(16)
    served.check_refusals("No space left")
    served.refused.clear()
    mount("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(disk / "journal"))
    served.until_refused(16)
    # A read-only folder in its place is not the folder that was opened.
    served.check_refusals("removed or replaced")
    n_before = len(served.answered)
    mount("umount", str(disk / "journal"))
    mount("mount", "-o", "remount,size=50m", str(disk))
    deadline = time.monotonic() + 60
    while not served.call("responses", stream=True):
        assert time.monotonic() < deadline
    for path in PATHS:
        assert served.call(path, stream=True)
    assert len(served.answered) > n_before
    uids = stored(inside / "journal")
    assert set(served.answered) == set(uids)
    assert len(uids) == len(set(uids))
