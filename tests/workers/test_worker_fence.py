"""A gateway worker in this process, whose owner is the test: what it serves after a pause, before it has heard news."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.config import Settings
from core.gateway.access.keys import KeyStore
from core.serving.process import EngineProcess
from core.workers.fence import PAUSE_S
from core.workers.worker import Worker
from tests.conftest import eventually

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with EngineProcess.start("scripted") as running:
        yield str(running.base_url)


class Owner:
    """Begins a worker, and keeps what it says."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.keys = KeyStore()
        self.key, self.key_sha256 = self.keys.mint(trajectory_uid="t")
        self.said: list[Any] = []
        settings = Settings(data_dir=folder, port=0, engine=engine).model_dump(mode="json")
        begin = {
            "settings": settings, "writer": "g1", "used": [], "port": 0, "owner": "http://127.0.0.1:9", "token": "x",
            "open_paths": [], "keys": self.keys.rows(), "policy": [], "sync": None, "engines": [], "paused_engines": [],
        }  # fmt: skip
        self.worker = Worker(begin, self.said.append)
        self.worker.start()
        self.url = f"http://127.0.0.1:{next(one['ready'] for one in self.said if 'ready' in one)}"

    def call(self) -> int:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.post(f"{self.url}/v1/chat/completions", json=BODY, headers=headers, timeout=120).status_code


def test_a_worker_hears_its_owner_before_it_serves_again(tmp_path: Path, engine: str) -> None:
    owner = Owner(tmp_path, engine)
    worker = owner.worker
    try:
        assert owner.call() == 200
        # As the clock shows it to whichever thread runs first after the pause.
        worker.fence._seen_at -= 10 * PAUSE_S
        codes: list[int] = []
        threads = [threading.Thread(target=lambda: codes.append(owner.call())) for _ in range(4)]
        for thread in threads:
            thread.start()
        question = eventually(lambda: next((one for one in owner.said if "fence" in one), None))
        threads[0].join(1.0)
        assert codes == [], "served before it heard"
        owner.keys.revoke(owner.key_sha256)
        worker.apply({"do": "key", "row": owner.keys.rows()[0]})
        worker.apply({"do": "fence", "fence": question["fence"]})
        for thread in threads:
            thread.join(120)
        assert codes == [401] * 4
    finally:
        worker.stop()
