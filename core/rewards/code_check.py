"""A verifier that runs a task's own check program in a process of its own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.rewards.base import Score

TIMEOUT_S = 120.0


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """Mean of the values that ``spec["program"]`` prints as one JSON object, as ClawGym's ``reward.sh`` averages them.

    The program gets the workspace as its only argument, and sees neither site packages nor the environment's Python
    settings (``python -I -S``). It runs with the rights of this process: only for tasks that are trusted.
    ``spec["timeout_s"]`` limits it, by default 120 s. A crash, a timeout or a value that is not a finite number is a
    failure of the check and not a score of 0.
    """
    command = [sys.executable, "-I", "-S", str(spec["program"]), str(workspace)]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=float(spec.get("timeout_s", TIMEOUT_S)), check=False
        )
    except subprocess.TimeoutExpired as error:
        return Score(None, error=f"the check did not end within {error.timeout:g} s")
    if run.returncode != 0:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        return Score(None, error=f"the check ended with code {run.returncode}: {last}")
    try:
        values = json.loads(run.stdout)
    except ValueError:
        return Score(None, error="the check printed no JSON object")
    if not isinstance(values, dict) or not values:
        return Score(None, error="the check printed no JSON object with values")
    numbers = [float(value) for value in values.values() if isinstance(value, int | float)]
    if len(numbers) != len(values) or not all(map(math.isfinite, numbers)):
        return Score(None, values, "a value of the check is not a finite number")
    return Score(math.fsum(numbers) / len(numbers), values)
