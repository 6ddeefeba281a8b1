"""A verifier that calls a Python function by its name, ``module:function``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.rewards.base import Score, Unscored, as_reward, mean_of, required
from core.rewards.run import check_box, output_of

VALUES = "values.json"
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
RUNNER = """
import importlib, json, operator, sys
name, workspace, payload, out = sys.argv[1:5]
module, _, function = name.partition(":")
call = operator.attrgetter(function)(importlib.import_module(module))
with open(payload, encoding="utf-8") as file:
    result = call(workspace, json.load(file))
with open(out, "w", encoding="utf-8") as file:
    json.dump(result, file)
"""


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """The result of ``spec["function"]``, called as ``function(workspace, payload)`` in a sandbox.

    ``workspace`` is the path of a copy, ``payload`` is ``spec["payload"]``. The function returns a number in [0, 1], or
    an object of numbers, whose mean is the reward. Its module is installed beside the studio, or in the folder
    ``spec["folder"]``.
    """
    name = required(spec, "function", str, "module:function")
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r} is no function", field="check.function", hint="module:function")
    with check_box(workspace, spec) as box:
        folder = spec.get("folder")
        env = {} if folder is None else {"PYTHONPATH": str(box.lend(Path(folder)))}
        made = box.lend_files({"run.py": RUNNER, "payload.json": json.dumps(spec.get("payload") or {})})
        out = box.home / VALUES
        files = [str(made / "run.py"), name, str(box.workspace), str(made / "payload.json"), str(out)]
        run = box.run(["python3", *files], env=env)
        content = box.result(VALUES)
        if content is None:
            raise Unscored("no_number", f"{name} gave no result", output_of(run))
        result = json.loads(content)
        if isinstance(result, int | float):
            return Score(as_reward(result, name), environment=box.environment())
        value, numbers = mean_of(result, name)
        return Score(as_reward(value, f"the mean of {name}"), {"values": numbers}, environment=box.environment())
