"""Client libraries, unmodified and told no more than an address: each solves two tasks with tools, one of them twice.

Their programs (``tests/clients/programs``) run in environments of their own against ``claw-studio serve``. What was
captured is held against the engine's own log, what the agent got against what the engine said.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx
import numpy as np
import pytest

from core.serving.process import EngineProcess
from tests.conftest import ServeProcess, eventually

from .installed import PROGRAMS, npm_modules, python_of
from .shown import task_of

pytestmark = pytest.mark.agents

NOTE = "größe < 3 “so”"
TASKS = {"lions": "Count the lions, two and three and four.", "tigers": "Count the tigers, two and three and four."}
ANSWERS = {task: f"There are 9 {task}." for task in TASKS}
CALLS = [["note", {"text": NOTE}], ["add", {"a": 2, "b": 3}], ["add", {"a": 5, "b": 4}]]
RUNS = ("lions", "tigers", "lions")


@dataclass(frozen=True)
class Library:
    """A client library and the dialect that it speaks.

    Attributes:
        environment: the folder of ``.cache/clients``.
        module: what has to be installed in it.
        transitions: of a run's second and third step; where a library does not send again what was said, so it is told.
        final: how the answer is given: as text, or by the call of a tool.
        keyed: every run has a session key, for who writes an answer's calls into its text: nothing else tells then
            that the next call goes on from it.
    """

    name: str
    dialect: str
    environment: str = "python"
    module: str = ""
    transitions: tuple[str, str] = ("extends", "extends")
    final: str = "text"
    keyed: bool = False
    env: dict[str, str] = field(default_factory=dict)

    def command(self) -> tuple[list[str], dict[str, str]]:
        """How the program is started, and its environment's variables."""
        if self.environment == "npm":
            return ["node", str(PROGRAMS / f"with_{self.name}.mjs")], {"CLIENT_MODULES": str(npm_modules(self.module))}
        return [python_of(self.environment, self.module), str(PROGRAMS / f"with_{self.name}.py")], self.env


EXTENDS = ("extends", "extends")
FORGETS = ("realigned", "realigned")
"""Of libraries that leave out an answer's thinking when they send it again."""
QUIET = {"OTEL_SDK_DISABLED": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
LIBRARIES = [
    Library("openai_agents", "chat", module="agents", transitions=FORGETS),
    Library("openai_agents", "responses", module="agents"),
    *(Library("pydantic_ai", dialect, module="pydantic_ai") for dialect in ("chat", "responses", "messages")),
    Library("langgraph", "chat", module="langchain", transitions=FORGETS),
    *(Library("langgraph", dialect, module="langchain") for dialect in ("responses", "messages")),
    Library("smolagents", "chat", module="smolagents", transitions=FORGETS, final="tool", keyed=True),
    Library("llama_index", "chat", "llama-index", "llama_index/core", FORGETS),
    Library("haystack", "chat", "llama-index", "haystack", FORGETS),
    Library("haystack", "responses", "llama-index", "haystack"),
    *(Library("ai_sdk", dialect, "npm", "ai") for dialect in ("chat", "responses", "messages")),
]


def script(library: Library) -> dict[str, Any]:
    """Thinking and words before a call, two calls at once, and the answer."""
    calls = [{"name": name, "arguments": arguments} for name, arguments in CALLS]
    turns: list[dict[str, Any]] = [
        {"reasoning": "First I write.", "content": "I note it.", "tool_calls": calls[:2]},
        {"reasoning": "Then the rest.", "tool_calls": calls[2:]},
    ]
    rules = [
        {"when": {"turn": turn, "contains": f"the {task}"}, "reply": reply}
        for turn, reply in enumerate(turns)
        for task in TASKS
    ]
    for task, answer in ANSWERS.items():
        last: dict[str, Any] = {"content": answer}
        if library.final == "tool":
            last = {"tool_calls": [{"name": "final_answer", "arguments": {"answer": answer}}]}
        rules.append({"when": {"min_turn": 2, "contains": f"the {task}"}, "reply": last})
    return {"model": "policy", "rules": rules, "default": {"content": "No rule fits."}}


@dataclass(frozen=True)
class Run:
    """What one library did: what each of its runs printed, the engine's log, and the steps in order of their calls."""

    library: Library
    printed: list[dict[str, Any]]
    log: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    stats: dict[str, Any]
    session: dict[str, Any]
    tasks: dict[str, str]


@pytest.fixture(scope="module", params=LIBRARIES, ids=lambda library: f"{library.name}-{library.dialect}")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    library: Library = request.param
    command, env = library.command()
    folder = tmp_path_factory.mktemp(library.name)
    rules = folder / "script.json"
    rules.write_text(json.dumps(script(library)))
    with EngineProcess.start("scripted", args=["--script", rules]) as engine:
        serve = ServeProcess(folder / "data", str(engine.base_url))
        try:
            session = serve.http.post("/api/v1/sessions", json={"agent": "known"}).json()
            session_address = session["anthropic_base_url"]
            assert session["base_url"] == f"{session_address}/v1"  # which the programs put there for OpenAI's clients
            printed = []
            for number, task in enumerate(RUNS):
                # The same task once more gives the same answers: only its key says that it is another attempt.
                key, address = ("unused", serve.base_url) if number < 2 else (session["api_key"], session_address)
                if library.keyed and number < 2:
                    key = serve.http.post("/api/v1/sessions", json={}).json()["api_key"]
                done = subprocess.run(
                    [*command, library.dialect, address, key, TASKS[task]],
                    cwd=folder,
                    env={"PATH": os.environ["PATH"], "HOME": str(folder), **QUIET, **env},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=240,
                    check=False,
                )
                assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
                printed.append(json.loads(done.stdout.strip().splitlines()[-1]))
            log = httpx.get(str(engine.base_url).removesuffix("/v1") + "/__log", timeout=120).json()["requests"]
            eventually(lambda: serve.http.get("/api/v1/stats").json()["n_steps"] >= len(log))
            listed = serve.http.get("/api/v1/steps", params={"order": "created_at asc", "limit": 100}).json()["steps"]
            steps = [serve.http.get(f"/api/v1/steps/{step['step_uid']}").json() for step in listed]
            stats = serve.http.get("/api/v1/stats").json()
            yield Run(library, printed, log, steps, stats, session, task_of(serve.http))
        finally:
            serve.stop()


def test_the_agent_got_what_the_engine_said(run: Run) -> None:
    # Calls of one answer run at the same time.
    assert [sorted(one["calls"][:2]) + one["calls"][2:] for one in run.printed] == [[CALLS[1], CALLS[0], CALLS[2]]] * 3
    assert [one["answer"] for one in run.printed] == [ANSWERS[task] for task in RUNS]
    assert {step["dialect"] for step in run.steps} == {run.library.dialect}


def test_ids_and_log_probs_are_the_engines(run: Run) -> None:
    sampled = [choice for row in run.log for choice in row["choices"]]
    assert [step["prompt_ids"] for step in run.steps] == [choice["prompt_ids"] for choice in sampled]
    assert [step["response_ids"] for step in run.steps] == [choice["response_ids"] for choice in sampled]
    for step, choice in zip(run.steps, sampled, strict=True):
        assert np.array_equal(np.float32(step["response_logprobs"]), np.float32(choice["logprobs"]))
    assert {step["token_source"] for step in run.steps} == {"engine"}
    assert run.stats["n_dropped"] == 0


def test_each_run_is_a_trajectory_and_each_task_a_group(run: Run) -> None:
    assert len(run.steps) == 9
    by_run = [run.steps[start : start + 3] for start in (0, 3, 6)]
    trajectories = [{step["trajectory_uid"] for step in steps} for steps in by_run]
    assert [len(uids) for uids in trajectories] == [1, 1, 1]
    assert len(set.union(*trajectories)) == 3
    assert trajectories[2] == {run.session["trajectory_uid"]}
    groups = [{step["prompt_uid"] for step in steps} for steps in by_run]
    assert [len(uids) for uids in groups] == [1, 1, 1]
    assert groups[0] == groups[2] != groups[1]
    assert [[step["step_index"] for step in steps] for steps in by_run] == [[0, 1, 2]] * 3


def test_each_call_is_main_and_continues_the_previous_one(run: Run) -> None:
    assert {step["call_kind"] for step in run.steps} == {"main"}
    assert all(step["trainable"] for step in run.steps)
    for start in (0, 3, 6):
        steps = run.steps[start : start + 3]
        assert tuple(step["transition"] for step in steps[1:]) == run.library.transitions
        for earlier, later in pairwise(steps):
            assert later["parent_step_uid"] == earlier["step_uid"]
            before, prompt = [*earlier["prompt_ids"], *earlier["response_ids"]], later["prompt_ids"]
            extends = prompt[: len(before)] == before
            assert extends == (later["transition"] == "extends")
            if extends:
                assert later["n_shared_tokens"] == len(before)


def test_the_task_that_is_shown_is_the_runs_own(run: Run) -> None:
    for start, task in zip((0, 3, 6), RUNS, strict=True):
        assert TASKS[task] in run.tasks[run.steps[start]["trajectory_uid"]]
