"""Targets of the Makefile that start the program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(("target", "command"), [("studio", "streamlit"), ("serve", "claw-studio")])
def test_compiled_modules_are_kept_whatever_the_shell_says(tmp_path: Path, target: str, command: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / ".studio").touch()
    program = tmp_path / "bin" / command
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'import sys; print(sys.dont_write_bytecode)'\n")
    program.chmod(0o755)

    completed = subprocess.run(
        ["make", "--silent", target, f"VENV={tmp_path}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines()[-1] == "False"
