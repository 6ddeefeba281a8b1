"""Folders and files that are removed, renamed or replaced while the service runs: told, refused, and nothing lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import httpx
import pytest

from core.config import Settings
from core.owner import running_service
from core.service import Service
from tests.conftest import ServeProcess, eventually
from tests.effort import sampled

NO_ENGINE = "http://127.0.0.1:9/v1"
ANOTHER = "another studio's"
TOLD = "was removed or replaced while the studio uses it"


class Producer:
    """Says steps and labels, and knows which were answered and which refused."""

    def __init__(self, service: ServeProcess) -> None:
        self.service = service
        self.numbers = count()
        self.steps: set[str] = set()
        self.labels: set[str] = set()
        self.refused: set[str] = set()

    def step(self) -> httpx.Response:
        uid = f"s{next(self.numbers)}"
        step = {"step_uid": uid, "step_index": 0, "trajectory_uid": uid, "prompt_ids": [1], "response_ids": [2]}
        answer = self.service.http.post("/api/v1/steps", json={"steps": [step]})
        (self.steps if answer.status_code == 200 else self.refused).add(uid)
        return answer

    def label(self) -> httpx.Response:
        tag = f"tag{next(self.numbers)}"
        annotation = {"target": {"trajectory_uid": "s0"}, "kind": "tag", "value": tag, "author": "me"}
        answer = self.service.http.post("/api/v1/annotations", json={"annotations": [annotation]})
        (self.labels if answer.status_code == 200 else self.refused).add(tag)
        return answer

    def seen(self) -> tuple[set[str], set[str]]:
        """The steps, and the tags of the first one, that the service shows."""
        rows = self.service.http.get("/api/v1/steps", params={"limit": 1000}).json()["steps"]
        return {row["step_uid"] for row in rows}, set(self.service.http.get("/api/v1/trajectories/s0").json()["tags"])

    def health(self) -> tuple[bool, str]:
        answer = self.service.http.get("/healthz")
        assert (answer.status_code == 200) == answer.json()["ok"]
        return answer.json()["ok"], " ".join(problem["message"] for problem in answer.json()["problems"])


def of_another(folder: Path) -> None:
    """A studio's folder with segments and logs of the same names, and more in them."""
    service = Service.open(Settings(data_dir=folder, port=0))
    try:
        for number in range(40):
            step = {"step_uid": f"other{number}", "step_index": 0, "trajectory_uid": "other", "response_ids": [7] * 500}
            answer = httpx.post(service.base_url + "/api/v1/steps", json={"steps": [step]}, timeout=120)
            assert answer.status_code == 200, answer.text
    finally:
        service.close()


FOLDERS = [
    *((part, by, 1) for part in ("", "journal", "opinions") for by in ("nothing", "an empty one", ANOTHER)),
    ("journal", ANOTHER, 2),
]


@pytest.mark.parametrize(("part", "by", "gateways"), sampled(FOLDERS, 4, "starts and ends three services"))
def test_a_folder_that_goes_is_told_and_nothing_is_lost(
    serve: Callable[..., ServeProcess], tmp_path: Path, part: str, by: str, gateways: int
) -> None:
    data = tmp_path / "data"
    service = serve(NO_ENGINE, data, env={"CLAW_STUDIO_GATEWAYS": str(gateways)})
    producer = Producer(service)
    for _ in range(5):
        assert producer.step().status_code == 200
    eventually(lambda: producer.seen()[0] == producer.steps)
    assert producer.label().status_code == 200
    assert producer.health() == (True, "")

    place, aside = data / part, tmp_path / "aside"
    if by == ANOTHER:
        of_another(tmp_path / "other")
    place.rename(aside)
    if by == "an empty one":
        place.mkdir()
    elif by == ANOTHER:
        shutil.copytree(tmp_path / "other" / part, place)
    eventually(lambda: TOLD in producer.health()[1])
    assert not producer.health()[0]
    if part != "opinions":
        answer = producer.step()
        assert answer.status_code == 507, answer.text
        assert TOLD in answer.text
    if part != "journal":
        answer = producer.label()
        assert answer.status_code == 507, answer.text
        assert TOLD in answer.text
    # Nothing of another folder is taken in.
    assert producer.seen() == (producer.steps, producer.labels)

    if place.exists():
        shutil.rmtree(place)
    aside.rename(place)
    eventually(lambda: producer.health() == (True, ""))
    assert producer.step().status_code == 200
    assert producer.label().status_code == 200
    eventually(lambda: producer.seen() == (producer.steps, producer.labels))
    service.kill()
    producer.service = serve(NO_ENGINE, data)
    assert producer.health() == (True, "")
    assert producer.seen() == (producer.steps, producer.labels)


def test_a_segment_that_is_deleted_takes_no_later_call_with_it(
    serve: Callable[..., ServeProcess], tmp_path: Path
) -> None:
    service = serve(NO_ENGINE)
    producer = Producer(service)
    assert producer.step().status_code == 200
    eventually(lambda: producer.seen()[0] == producer.steps)
    (segment,) = (tmp_path / "data" / "journal").glob("*.seg")
    segment.unlink()
    answer = producer.step()
    assert answer.status_code == 507, answer.text
    assert TOLD in answer.text
    assert producer.step().status_code == 200
    eventually(lambda: producer.seen()[0] == producer.steps)
    service.kill()
    producer.service = serve(NO_ENGINE)
    assert producer.seen()[0] == producer.steps


@pytest.mark.parametrize("by", ["nothing", "an empty file"])
def test_the_pools_file_that_goes_is_told_and_made_anew(
    serve: Callable[..., ServeProcess], tmp_path: Path, by: str
) -> None:
    service = serve(NO_ENGINE)
    producer = Producer(service)
    assert producer.step().status_code == 200
    eventually(lambda: producer.seen()[0] == producer.steps)
    pool = tmp_path / "data" / "pool.duckdb"
    pool.unlink()
    if by == "an empty file":
        pool.touch()
    eventually(lambda: not producer.health()[0])
    assert TOLD in producer.health()[1]
    assert producer.step().status_code == 200
    assert producer.label().status_code == 200
    service.kill()
    command = [sys.executable, "-m", "core.cli", "doctor", "--rebuild"]
    env = {"CLAW_STUDIO_DATA_DIR": str(tmp_path / "data")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    producer.service = serve(NO_ENGINE)
    assert producer.health() == (True, "")
    assert producer.seen() == (producer.steps, producer.labels)


@pytest.mark.parametrize("note", ["pid", "nonsense"])
def test_a_note_of_a_process_number_that_is_another_program_now_stops_no_start(
    serve: Callable[..., ServeProcess], tmp_path: Path, note: str
) -> None:
    """After SIGKILL the lock's files stay; their numbers may be of any process by then. The kernel's lock decides."""
    service = serve(NO_ENGINE)
    producer = Producer(service)
    assert producer.step().status_code == 200
    service.kill()
    left = tmp_path / "data" / "owner.json"
    assert str(service.process.pid) in left.read_text()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        contents = {"pid": f'{{"pid": {stranger.pid}, "base_url": "{service.base_url}"}}', "nonsense": "\0{"}
        left.write_text(contents[note])
        for name in ("owner.lock", "journal/w0.lock"):
            (tmp_path / "data" / name).write_text(str(stranger.pid))
        assert running_service(tmp_path / "data") is None
        producer.service = serve(NO_ENGINE)
        assert producer.health() == (True, "")
        assert producer.step().status_code == 200
        eventually(lambda: producer.seen()[0] == producer.steps)
        assert f'"pid": {producer.service.process.pid}' in left.read_text()
        assert producer.service.stop() == 0
        assert stranger.poll() is None
        assert stranger.stdin is not None
        stranger.stdin.close()
