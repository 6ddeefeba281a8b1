"""A verifier that runs a task's own check program in a sandbox, on a copy of the workspace."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.rewards.base import Score, Unscored, mean_of
from core.rewards.run import check_box


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """Mean of the values that ``spec["program"]`` prints as one JSON object.

    The program gets the path of a copy of the workspace as its only argument, a fresh home and no network as far as the
    level of isolation promises, and sees neither site packages nor the environment's Python settings
    (``python -I -S``). It gets a copy of its own folder. ``core.rewards.run`` lists the settings. A crash, a timeout
    or a value that is not a finite number is a failure of the check and not a score of 0.
    """
    program = Path(spec["program"]).resolve()
    with check_box(workspace, spec) as box:
        lent = box.lend(program.parent) / program.name
        run = box.run([sys.executable, "-I", "-S", str(lent), str(box.workspace)], cwd=box.workspace)
        try:
            printed = json.loads(run.stdout)
        except (ValueError, RecursionError):
            raise Unscored("no_number", "the check printed no JSON object") from None
        value, numbers = mean_of(printed, "the check")
        return Score(value, numbers, environment=box.environment())
