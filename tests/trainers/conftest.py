"""What the trainers' tests share: a small model, and an open pool."""

from __future__ import annotations

import pytest

from core.pool import Pool
from core.serving.model import make_model


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"), seed=3)


@pytest.fixture
def pool(tmp_path):
    opened = Pool.open(tmp_path / "pool.duckdb", memory="512MB", threads=1, clock=lambda: 1_700_100_000.0)
    yield opened
    opened.close()
