"""Where agents from npm are: ``.ci/run`` installs them, pinned, into ``.cache/agents``."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.left_out import missing

AGENTS = Path(__file__).resolve().parents[2] / ".cache" / "agents" / "node_modules"


def cli(name: str) -> str:
    """A CLI's path, from ``.cache/agents`` or PATH."""
    installed = AGENTS / ".bin" / name
    program = str(installed) if installed.exists() else shutil.which(name)
    if program is None:
        missing(f"{name} is not installed, so this real agent was not tested: .ci/run installs it into .cache/agents")
    return program
