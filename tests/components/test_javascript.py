"""Runs the components' JavaScript tests (``*.test.mjs`` beside this file) with Node's own test runner."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.left_out import missing

HERE = Path(__file__).parent


@pytest.mark.parametrize("script", sorted(path.name for path in HERE.glob("*.test.mjs")))
def test_geometry(script: str) -> None:
    node = shutil.which("node")
    if node is None:
        missing("no node on this machine: the components' own tests did not run")
    ran = subprocess.run([node, "--test", str(HERE / script)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
