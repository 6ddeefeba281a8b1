"""Where agents from npm are: ``.ci/run`` installs them, pinned, into ``.cache/agents``."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import pytest

AGENTS = Path(__file__).resolve().parents[2] / ".cache" / "agents" / "node_modules"


def cli(name: str) -> str:
    """A CLI's path, from ``.cache/agents`` or PATH. Missing is a failure in CI and loud elsewhere."""
    installed = AGENTS / ".bin" / name
    found = str(installed) if installed.exists() else shutil.which(name)
    if found is None:
        message = f"{name} is not installed, so this real agent was not tested: .ci/run installs it into .cache/agents"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        warnings.warn(message, stacklevel=2)
        pytest.skip(message)
    return found
