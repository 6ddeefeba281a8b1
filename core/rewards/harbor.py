"""A verifier that runs ``test.sh`` of a Harbor or terminal-bench 2 task."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.rewards.base import Score, Unscored, as_reward, required
from core.rewards.run import CheckBox, check_box, output_of

SCRIPT = "test.sh"
LOGS, TESTS = "/logs/verifier", "/tests"
IN_HOME = "logs/verifier"
NUMBER, OBJECT = "reward.txt", "reward.json"
REWARD = "reward"
_TEXT_BYTES = 1 << 20


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """The reward that ``test.sh`` of the folder ``spec["folder"]`` writes into the verifier's log folder.

    ``reward.json`` (an object of finite numbers) is read first, then ``reward.txt``. The reward is the value ``reward``
    of the object, or its only value, else the mean. Any finite number is accepted. A missing file is a failure of the
    verifier and not a score of 0, whatever the exit code of the script.

    Outside of a container, ``/tests`` and ``/logs/verifier`` in the files of the folder are replaced by real paths, and
    ``spec["workdir"]`` (the working folder of the image) by the workspace. A task with ``spec["image"]`` is refused
    unless ``spec["without_image"]`` is true: its programs are not here. ``spec["env"]`` is added to the environment.
    """
    folder = Path(required(spec, "folder", (str, Path), "the folder with test.sh"))
    if not (folder / SCRIPT).is_file():
        raise Unscored("missing", f"the check has no {SCRIPT}")
    if spec.get("image") and not spec.get("without_image"):
        raise Unscored("refused", f"the check needs the container image {spec['image']}, and runs without one here")
    with check_box(workspace, spec) as box:
        tests = _lend(box, folder, spec.get("workdir"))
        env = {str(name): str(value) for name, value in (spec.get("env") or {}).items()}
        begin = ["bash", "-c", 'mkdir -p "$1" && exec bash "$2"', "bash", str(box.home / IN_HOME)]
        run = box.run([*begin, str(tests / SCRIPT)], env=env, cwd=box.workspace, check=False)
        details = {"exit_code": run.returncode, **output_of(run)}
        values = _read(box, details)
        chosen = values.get(REWARD, next(iter(values.values())) if len(values) == 1 else None)
        value = sum(values.values()) / len(values) if chosen is None else chosen
        return Score(value, {"values": values, "exit_code": run.returncode}, environment=box.environment())


def _lend(box: CheckBox, folder: Path, workdir: Any) -> Path:
    """A copy of the folder of tests whose texts have the real paths."""
    lent = box.lend(folder)
    real = {TESTS: str(lent), LOGS: str(box.home / IN_HOME)}
    if isinstance(workdir, str) and workdir.startswith("/") and workdir.strip("/"):
        real["/" + workdir.strip("/")] = str(box.workspace)
    longest = sorted(real, key=len, reverse=True)
    pattern = re.compile(rf"(?<![\w.~}})-])({'|'.join(map(re.escape, longest))})(?![\w-])")
    for path in lent.rglob("*"):
        if not path.is_file() or path.stat().st_size > _TEXT_BYTES:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        replaced = pattern.sub(lambda match: real[match[1]], text)
        if replaced != text:
            path.write_text(replaced, encoding="utf-8")
    return lent


def _read(box: CheckBox, details: Mapping[str, Any]) -> dict[str, float]:
    """The rewards by name: of ``reward.json``, else the one of ``reward.txt``."""
    content = box.result(f"{IN_HOME}/{OBJECT}")
    if content is not None:
        try:
            values = json.loads(content)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict) or not values:
            raise Unscored("no_number", f"{OBJECT} is no JSON object with values", details)
        return {str(name): as_reward(one, f"{OBJECT}: {name}", details, bounded=False) for name, one in values.items()}
    content = box.result(f"{IN_HOME}/{NUMBER}")
    if content is None:
        raise Unscored("missing", f"{SCRIPT} wrote neither {OBJECT} nor {NUMBER}", details)
    return {REWARD: as_reward(content.decode(errors="replace").strip(), NUMBER, details, bounded=False)}
