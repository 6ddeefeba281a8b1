"""One running service for the tests of the HTTP surface: ``claw-studio serve`` with the scripted engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.client import StudioClient
from core.serving.process import EngineProcess
from tests.conftest import ServeProcess, scripted_engine

SCRIPT = {"model": "scripted-1", "default": {"reply": {"content": "The answer is forty-two."}}}


@pytest.fixture(scope="package")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """A scripted engine that always knows the answer."""
    with scripted_engine(tmp_path_factory.mktemp("api-engine"), SCRIPT) as running:
        yield running


@pytest.fixture(scope="package")
def service(scripted: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """The service, shared: tests name their own trajectories."""
    assert scripted.base_url
    process = ServeProcess(tmp_path_factory.mktemp("api") / "data", scripted.base_url)
    yield process
    assert process.stop() == 0


@pytest.fixture
def client(service: ServeProcess) -> Iterator[StudioClient]:
    """A client of it."""
    with StudioClient(service.base_url) as opened:
        yield opened
