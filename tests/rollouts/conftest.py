"""A studio with the demo's scripted engine, and the demo's tasks as a pack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.config import Settings
from core.service import Service
from core.serving.process import EngineProcess
from core.tasks.demo import demo_script_path

from .demo_pack import write_pack


@pytest.fixture(scope="package")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pack(tmp_path_factory.mktemp("demo-pack"))


@pytest.fixture(scope="package")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """The demo's policy, which answers at once."""
    script = json.loads(demo_script_path().read_text())
    for rule in script["rules"]:
        rule["delay_s"] = 0
    path = tmp_path_factory.mktemp("engine") / "script.json"
    path.write_text(json.dumps(script))
    with EngineProcess.start("scripted", args=["--script", path]) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def service(engine: EngineProcess, tmp_path: Path) -> Iterator[Service]:
    opened = Service.open(Settings(data_dir=tmp_path / "data", port=0, engine=str(engine.base_url)))
    yield opened
    opened.close()
