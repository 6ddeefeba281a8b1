"""The interpreter that has Ray beside the project's packages: ``.ci/run`` installs it into ``.cache/trainers/ray``."""

from __future__ import annotations

import os
from pathlib import Path

from tests.left_out import missing

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("CLAW_RAY_PYTHON", ROOT / ".cache" / "trainers" / "ray" / "bin" / "python"))


def ray_python() -> Path:
    """The interpreter with Ray; leaves the test out where there is none."""
    if not PYTHON.exists():
        missing("Ray is not installed, so no cluster was started: .ci/run installs it into .cache/trainers/ray")
    return PYTHON


def ray_python_with_jobs() -> Path:
    """The interpreter with Ray and what its dashboard needs, which takes jobs."""
    python = ray_python()
    if not list(python.parents[1].glob("lib/python3*/site-packages/aiohttp_cors")):
        missing("Ray's dashboard is not installed, so no job was submitted: .ci/run installs ray[default]'s packages")
    return python
