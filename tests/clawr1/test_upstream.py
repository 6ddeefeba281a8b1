"""Claw-R1's own GSM8K agent and white-box flows, unchanged, against our gateway.

Runs where ``CLAW_UPSTREAM`` names a folder with the git directory ``AgentR1+Claw-R1/repo`` or a checkout ``Claw-R1``,
and ``CLAW_R1_PYTHON`` a Python with verl 0.7 or 0.8, openai and Claw-R1's other imports.
"""

from __future__ import annotations

import ast
import asyncio
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.api.clawr1 import _with_version
from core.rewards import score
from core.serving.tokenizer import ASSETS
from tests.clawr1.conftest import FIELDS, SAMPLING
from tests.clawr1.test_wire import only_trajectory
from tests.conftest import ServeProcess

ROOT = os.environ.get("CLAW_UPSTREAM")
PYTHON = os.environ.get("CLAW_R1_PYTHON")
needs_upstream = pytest.mark.skipif(ROOT is None, reason="CLAW_UPSTREAM names no folder of upstream repositories")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert ROOT is not None
    if (Path(ROOT) / "Claw-R1").is_dir():
        return Path(ROOT) / "Claw-R1"
    git = ["git", f"--git-dir={Path(ROOT) / 'AgentR1+Claw-R1' / 'repo'}", "archive", "HEAD", "claw_r1"]
    folder = tmp_path_factory.mktemp("claw-r1")
    with tarfile.open(fileobj=io.BytesIO(subprocess.run(git, capture_output=True, check=True).stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@needs_upstream
@pytest.mark.skipif(PYTHON is None, reason="CLAW_R1_PYTHON names no Python that has verl")
def test_their_programs_run_unchanged(service: ServeProcess, checkout: Path) -> None:
    assert PYTHON is not None
    flows = ("blackbox", "single", "multi")
    tasks = [{"flow": flow, "kwargs": {**FIELDS, "uid": f"q-{flow}"}, "sampling_params": SAMPLING} for flow in flows]
    drive = [PYTHON, str(Path(__file__).with_name("drive.py")), str(checkout), service.base_url, str(ASSETS)]
    done = subprocess.run(drive, input=json.dumps(tasks), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "RESULTS [2, 1, 2]" in done.stdout
    black, single, multi = (only_trajectory(service, f"q-{flow}") for flow in flows)
    assert [t["complete"] for t in (black, single, multi)] == [True, True, True]
    assert [len(t["steps"]) for t in (black, single, multi)] == [2, 1, 2]
    assert {step["token_source"] for step in black["steps"]} == {"engine"}
    assert {step["token_source"] for t in (single, multi) for step in t["steps"]} == {"whitebox"}
    assert [step["reward"] for step in multi["steps"]] == [None, 1.0]
    assert black["metadata"]["reward_model"] == FIELDS["reward_model"]


@needs_upstream
@pytest.mark.parametrize("told", [{"policy_version": v} for v in (5, "6", 7.9, 0, True, "")])
def test_a_registration_stamps_the_version_that_theirs_stamps(checkout: Path, told: dict[str, Any]) -> None:
    """Their gateway's own function, taken out of its module, beside ours."""
    tree = ast.parse((checkout / "claw_r1" / "gateway" / "gateway.py").read_text())
    (theirs,) = (node for node in tree.body if getattr(node, "name", None) == "register_trajectory")
    assert isinstance(theirs, ast.AsyncFunctionDef)
    theirs.decorator_list = []
    names = ("step_counter", "channel", "metadata", "policy_version")
    scope: dict[str, Any] = {"Request": Any, **{f"_trajectory_{name}": {} for name in names}}
    exec(compile(ast.Module([theirs], []), "gateway", "exec"), scope)

    class Request:
        async def json(self) -> dict[str, Any]:
            return {"metadata": told}

    asyncio.run(scope["register_trajectory"]("t", "p", Request()))
    assert _with_version(told)["policy_version"] == scope["_trajectory_policy_version"]["t"]


def verl_gsm8k() -> Any:
    assert ROOT is not None
    git = [
        "git",
        f"--git-dir={Path(ROOT) / 'volcengine+verl' / 'repo'}",
        "show",
        "HEAD:verl/utils/reward_score/gsm8k.py",
    ]
    modules = SimpleNamespace()
    exec(
        compile(ast.parse(subprocess.run(git, capture_output=True, text=True, check=True).stdout), "gsm8k", "exec"),
        vars(modules),
    )
    return modules.compute_score


words = st.lists(
    st.one_of(st.integers(-2000, 2000).map(str), st.sampled_from(["####", "is", "1,234", "So", "\n", "."])), max_size=40
).map(" ".join)


@needs_upstream
@pytest.mark.parametrize("method", ["strict", "flexible"])
def test_the_verifier_scores_as_verl_does(method: str) -> None:
    theirs = verl_gsm8k()

    @given(text=words, answer=st.integers(-2000, 2000).map(str))
    def same(text: str, answer: str) -> None:
        spec = {"verifier": "final_number", "text": text, "answer": answer, "flexible": method == "flexible"}
        assert score(Path(), spec).value == theirs(text, answer, method=method)

    same()
