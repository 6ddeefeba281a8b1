"""The layers of this machine, each as a fixture value."""

from __future__ import annotations

import shutil

import pytest

from core.sandbox import LEVELS, Probed, probed
from tests.left_out import missing


def layer_of(level: str) -> Probed:
    """The layer of this level, or a skip that says why the machine has none; a failure in CI for ``strict``."""
    for one in probed():
        if one.isolation.level == level:
            return one
    why = "; ".join(probed()[0].isolation.why) if probed() else "no layer works"
    if level == "strict" and shutil.which("bwrap") is None:
        missing(f"isolation {level}: {why}")
    pytest.skip(f"this machine has no isolation {level}: {why}")


@pytest.fixture(scope="module", params=LEVELS)
def layer(request: pytest.FixtureRequest) -> Probed:
    return layer_of(request.param)
