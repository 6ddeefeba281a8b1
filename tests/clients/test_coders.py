"""Coding agents, unmodified and told no more than an address and a key: each writes a file in a folder of its own.

aider edits by what the model says and asks for a commit message of its own accord; mini-swe-agent has one tool, Qwen
Code many. What was captured is held against the engine's own log.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from core.serving.process import EngineProcess
from tests.conftest import ServeProcess, eventually

from .installed import PROGRAMS, npm_modules, python_of
from .shown import task_of

pytestmark = pytest.mark.agents

PROMPT = "Read numbers.txt, write the word that follows it to next.txt, and say which word that is."
COMMANDS = ("cat numbers.txt", "printf 'eight\\n' > next.txt && cat next.txt")
SAID = ("I read the file.", "It says seven; I write eight.", "The word is eight.")
EDIT = "The word is eight.\n\nnext.txt\n```\neight\n```\n"
COMMIT_MESSAGE = "feat: add the next number"


def aider(base_url: str, folder: Path, key: str) -> tuple[list[str], dict[str, str]]:
    for command in (
        ["init", "-q"],
        ["config", "user.email", "a@b.example"],
        ["config", "user.name", "n"],
        ["add", "-A"],
        ["commit", "-qm", "begin"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    options = ["--openai-api-base", f"{base_url}/v1", "--openai-api-key", key, "--model", "openai/policy"]
    options += ["--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--no-gitignore"]
    return [python_of("aider", "aider"), "-m", "aider", *options, "--message", PROMPT, "numbers.txt"], {}


def mini_swe_agent(base_url: str, folder: Path, key: str) -> tuple[list[str], dict[str, str]]:
    program = str(PROGRAMS / "with_mini_swe_agent.py")
    return [python_of("mini-swe-agent", "minisweagent"), program, "chat", base_url, key, PROMPT], {
        "MSWEA_SILENT_STARTUP": "1"
    }


def qwen_code(base_url: str, folder: Path, key: str) -> tuple[list[str], dict[str, str]]:
    modules = npm_modules("@qwen-code/qwen-code")
    env = {"OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"{base_url}/v1", "OPENAI_MODEL": "policy"}
    return [str(modules / ".bin" / "qwen"), "-p", PROMPT, "--yolo"], env


def turns(tool: str, last: Sequence[dict[str, Any]] = (), **more: Any) -> list[dict[str, Any]]:
    calls = [[{"name": tool, "arguments": {"command": command, **more}}] for command in COMMANDS]
    replies = [{"content": text, "tool_calls": made} for text, made in zip(SAID, [*calls, list(last)], strict=True)]
    return [{"when": {"turn": turn, "has_tools": True}, "reply": reply} for turn, reply in enumerate(replies)]


@dataclass(frozen=True)
class Coder:
    """A coding agent: how it is started, what the engine says, and the call kinds of its calls.

    ``session``: it is given a session key. A message for a commit shares no word with the talk before it, so nothing
    else says that both are one agent's.
    """

    name: str
    start: Callable[[str, Path, str], tuple[list[str], dict[str, str]]]
    rules: list[dict[str, Any]]
    call_kinds: tuple[str, ...] = ("main", "main", "main")
    session: bool = False


SUBMIT = {"name": "bash", "arguments": {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}}
CODERS = [
    Coder(
        "aider",
        aider,
        [
            {"when": {"contains": "Git commit message"}, "reply": {"content": COMMIT_MESSAGE}},
            {"when": {"last_contains": PROMPT}, "reply": {"content": EDIT}},
        ],
        ("main", "auxiliary"),
        session=True,
    ),
    Coder("mini-swe-agent", mini_swe_agent, turns("bash", [SUBMIT])),
    Coder("qwen-code", qwen_code, turns("run_shell_command", is_background=False)),
]


@dataclass(frozen=True)
class Run:
    """What one agent did: its folder, the engine's log, the steps in order of their calls, and the task shown."""

    coder: Coder
    folder: Path
    printed: str
    log: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    tasks: dict[str, str]


@pytest.fixture(scope="module", params=CODERS, ids=lambda coder: coder.name)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    coder: Coder = request.param
    home = tmp_path_factory.mktemp(coder.name)
    folder, rules = home / "workspace", home / "script.json"
    folder.mkdir()
    (folder / "numbers.txt").write_text("seven\n")
    script = {"model": "policy", "context_length": 200_000, "rules": coder.rules, "default": {"content": "A title."}}
    rules.write_text(json.dumps(script))
    with EngineProcess.start("scripted", args=["--script", rules]) as engine:
        serve = ServeProcess(home / "data", str(engine.base_url))
        try:
            key = serve.http.post("/api/v1/sessions", json={}).json()["api_key"] if coder.session else "unused"
            command, env = coder.start(serve.base_url, folder, key)
            done = subprocess.run(
                command,
                cwd=folder,
                env={"PATH": os.environ["PATH"], "HOME": str(home), "LITELLM_LOCAL_MODEL_COST_MAP": "True", **env},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=280,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
            log = httpx.get(str(engine.base_url).removesuffix("/v1") + "/__log", timeout=120).json()["requests"]
            eventually(lambda: serve.http.get("/api/v1/stats").json()["n_steps"] >= len(log))
            listed = serve.http.get("/api/v1/steps", params={"order": "created_at asc", "limit": 100}).json()["steps"]
            steps = [serve.http.get(f"/api/v1/steps/{step['step_uid']}").json() for step in listed]
            yield Run(coder, folder, done.stdout, log, steps, task_of(serve.http))
        finally:
            serve.stop()


def test_the_agent_did_what_the_engine_said(run: Run) -> None:
    assert (run.folder / "next.txt").read_text() == "eight\n"
    assert SAID[-1] in run.printed
    if run.coder.name == "aider":
        completed = subprocess.run(["git", "log", "-1", "--format=%s"], cwd=run.folder, capture_output=True, check=True)
        assert completed.stdout.decode().strip() == COMMIT_MESSAGE


def test_ids_and_log_probs_are_the_engines(run: Run) -> None:
    sampled = [choice for row in run.log for choice in row["choices"]]
    assert [step["prompt_ids"] for step in run.steps] == [choice["prompt_ids"] for choice in sampled]
    assert [step["response_ids"] for step in run.steps] == [choice["response_ids"] for choice in sampled]
    for step, choice in zip(run.steps, sampled, strict=True):
        assert np.array_equal(np.float32(step["response_logprobs"]), np.float32(choice["logprobs"]))
    assert {step["token_source"] for step in run.steps} == {"engine"}


def test_each_call_is_of_its_kind_and_the_main_ones_are_one_trajectory(run: Run) -> None:
    assert tuple(step["call_kind"] for step in run.steps) == run.coder.call_kinds
    assert [step["trainable"] for step in run.steps] == [kind == "main" for kind in run.coder.call_kinds]
    main = [step for step in run.steps if step["call_kind"] == "main"]
    assert len({step["trajectory_uid"] for step in main}) == len({step["prompt_uid"] for step in main}) == 1
    assert [step["transition"] for step in main[1:]] == ["extends"] * (len(main) - 1)
    for earlier, later in pairwise(main):
        before = [*earlier["prompt_ids"], *earlier["response_ids"]]
        assert later["prompt_ids"][: len(before)] == before


def test_the_task_that_is_shown_is_the_agents(run: Run) -> None:
    (main,) = {step["trajectory_uid"] for step in run.steps if step["call_kind"] == "main"}
    assert PROMPT in run.tasks[main]
