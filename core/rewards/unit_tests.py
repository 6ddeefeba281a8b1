"""A verifier that runs pytest on a task's tests, and reads its JUnit XML."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from core.errors import InvalidInput
from core.rewards.base import Score, Unscored, required
from core.rewards.run import check_box, output_of

REPORT = "junit.xml"
RULES = {"all": "1.0 if every test passes", "fraction": "the passed tests divided by all"}
# Last, and not by PYTHONPATH: the agent's files must not stand in for a module of Python or pytest.
PATHS = """
import os, sys
sys.path.insert(0, os.environ["CLAW_STUDIO_TESTS"])
sys.path.append(os.environ["CLAW_STUDIO_WORKSPACE"])
"""
ALL_RAN = {0, 1}
"""Exit codes of pytest with a result: all passed, some failed."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test: its id, ``passed``, ``failed``, ``error`` or ``skipped``, and the message of what is not passed."""

    name: str
    result: str
    message: str = ""


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """Run the tests of the folder ``spec["folder"]`` with pytest; the working folder is a copy of the workspace.

    The tests stay outside the workspace and can import its modules. ``conftest.py`` and settings of the workspace are
    not read, and plugins are not loaded. ``spec["rule"]`` is a key of ``RULES``, by default ``all``. Skipped tests do
    not count, except that a run without any other test is a failure of the verifier. ``spec["args"]`` are further
    arguments of pytest.

    Code of the agent runs in the process of the tests when they import it. Such code can change their result: use a
    check that runs it as a program where that matters.
    """
    folder = Path(required(spec, "folder", (str, Path), "the folder of tests"))
    rule = spec.get("rule", "all")
    if rule not in RULES:
        raise InvalidInput(f"no rule {rule!r}", field="check.rule", hint=", ".join(RULES))
    if not folder.is_dir():
        raise Unscored("missing", "the check has no folder of tests")
    if importlib.util.find_spec("pytest") is None:
        raise Unscored("refused", "pytest is not installed; install claw-studio[test]")
    with check_box(workspace, spec) as box:
        tests = box.lend(folder)
        settings = box.lend_files({"pytest.ini": "[pytest]\n", "claw_paths.py": PATHS})
        command = ["python3", "-P", "-m", "pytest", "-q", "-c", str(settings / "pytest.ini"), f"--rootdir={tests}"]
        command += [f"--confcutdir={tests}", "-p", "no:cacheprovider", "-p", "claw_paths", "--import-mode=importlib"]
        command += [f"--junitxml={box.home / REPORT}", *(str(one) for one in spec.get("args", ())), str(tests)]
        env = {"PYTHONPATH": str(settings), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        env |= {"CLAW_STUDIO_TESTS": str(tests), "CLAW_STUDIO_WORKSPACE": str(box.workspace)}
        run = box.run(command, env=env, cwd=box.workspace, check=False)
        content = box.result(REPORT)
        if run.returncode not in ALL_RAN or content is None:
            raise Unscored("crashed", f"pytest ended with code {run.returncode} and without a result", output_of(run))
        cases = read_junit(content)
        counted = [one for one in cases if one.result != "skipped"]
        if not counted:
            raise Unscored("missing", "no test ran", output_of(run))
        n_passed = sum(one.result == "passed" for one in counted)
        details = {
            "n_passed": n_passed,
            "n_tests": len(counted),
            "n_skipped": len(cases) - len(counted),
            "values": {one.name: float(one.result == "passed") for one in counted},
            "messages": {one.name: one.message for one in counted if one.message},
        }
        value = n_passed / len(counted) if rule == "fraction" else float(n_passed == len(counted))
        return Score(value, details, environment=box.environment())


def read_junit(content: bytes) -> list[Case]:
    """The test cases of a JUnit XML file.

    Raises:
        Unscored: it is no such file.
    """
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise Unscored("crashed", "the JUnit file declares entities")
    try:
        root = ElementTree.fromstring(content)
    except ElementTree.ParseError as error:
        raise Unscored("crashed", f"the JUnit file is not valid: {error}") from None
    return [_case(one) for one in root.iter("testcase")]


def _case(node: ElementTree.Element) -> Case:
    name = "::".join(part for part in (node.get("classname"), node.get("name")) if part)
    for tag, result in (("error", "error"), ("failure", "failed"), ("skipped", "skipped")):
        inner = node.find(tag)
        if inner is not None:
            return Case(name, result, (inner.get("message") or "")[:300])
    return Case(name, "passed")
