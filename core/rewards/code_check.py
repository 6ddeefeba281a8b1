"""A verifier that runs a task's own check program in a sandbox, on a copy of the workspace."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.rewards.base import Score
from core.sandbox import Limits, choose, interpreter, parse_level

TIMEOUT_S = 120.0


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """Mean of the values that ``spec["program"]`` prints as one JSON object, as ClawGym's ``reward.sh`` averages them.

    The program gets the path of a copy of the workspace as its only argument, a fresh home and no network as far as the
    level of isolation promises, and sees neither site packages nor the environment's Python settings
    (``python -I -S``). It gets a copy of its own folder. Links are not copied. ``spec["isolation"]`` demands a level of
    ``core.sandbox``; without it, the best of this machine is used. ``spec["timeout_s"]`` limits the time, by default
    120 s. A crash, a timeout or a value that is not a finite number is a failure of the check and not a score of 0.

    Raises:
        InvalidInput: there is no such level.
        IsolationMissing: the machine has no such level.
    """
    layer = choose(parse_level(spec.get("isolation", "process"), "check.isolation"))
    timeout_s = float(spec.get("timeout_s", TIMEOUT_S))
    program = Path(spec["program"]).resolve()
    python, readable = interpreter()
    with layer.sandbox(readable=readable, limits=Limits(time_s=timeout_s)) as sandbox:
        refused = sandbox.copy_in(workspace).refused
        too_much = [reason for reason in refused.values() if reason.startswith("more than")]
        if too_much:
            return Score(None, error=f"the workspace is too large for the check: {too_much[0]}")
        lent = sandbox.lend(program.parent) / program.name
        run = sandbox.run([python, "-I", "-S", str(lent), str(sandbox.workspace)])
    if run.end == "timed_out":
        return Score(None, error=f"the check did not end within {timeout_s:g} s")
    if run.end != "exited":
        return Score(None, error=f"the check was ended: {run.end.replace('_', ' ')}")
    if run.returncode != 0:
        last = (run.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
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
