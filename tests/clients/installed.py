"""Where the client libraries are: ``.ci/run`` installs them, pinned, into ``.cache/clients``."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.left_out import missing

CLIENTS = Path(__file__).resolve().parents[2] / ".cache" / "clients"
PROGRAMS = Path(__file__).parent / "programs"


def python_of(name: str, module: str) -> str:
    """The interpreter of the environment ``name``, which has ``module``."""
    environment = CLIENTS / name
    if not list(environment.glob(f"lib/python3*/site-packages/{module}/__init__.py")):
        missing(f"{module} is not installed, so this real client was not tested: .ci/run installs it in .cache/clients")
    return str(environment / "bin" / "python")


def npm_modules(package: str) -> Path:
    """The folder of npm packages, which has ``package``."""
    folder = CLIENTS / "npm" / "node_modules"
    if not (folder / package).is_dir() or shutil.which("node") is None:
        missing(
            f"{package} is not installed, so this real client was not tested: .ci/run installs it in .cache/clients"
        )
    return folder
