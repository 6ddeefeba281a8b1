"""A running service to import into; its engine is never called."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core.client import StudioClient
from tests.conftest import ServeProcess


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    process = ServeProcess(tmp_path_factory.mktemp("imports") / "data", "http://127.0.0.1:9/v1")
    yield process
    assert process.stop() == 0


@pytest.fixture
def client(service: ServeProcess) -> Iterator[StudioClient]:
    with StudioClient(service.base_url) as opened:
        yield opened
