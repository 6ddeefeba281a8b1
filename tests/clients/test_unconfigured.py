"""Clients as a newcomer points them: a base URL, and nothing that says which call belongs to which run.

Each does one task, another behind the same examples or primer, and the first one twice more at the same time. Every run
goes through a forwarder of its own, which remembers the ports of its connections: the reference for whose call it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.serving.process import EngineProcess
from tests.conftest import ServeProcess, eventually

from .installed import PROGRAMS, npm_modules, python_of
from .shown import task_of

pytestmark = pytest.mark.agents

TASKS = {"lions": "Count the lions, two and three and four.", "tigers": "Count the tigers, two and three and four."}
SAID = {task: f"There are 9 {task}." for task in TASKS}
RUNS = (("lions",), ("tigers",), ("lions", "lions"))
"""Tasks of the runs, one batch after the other; those of a batch at the same time."""
ALL = tuple(chain.from_iterable(RUNS))
QUIET = {"OTEL_SDK_DISABLED": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
COMMIT = "feat: count them"


def smolagents(base_url: str, folder: Path, number: int, task: str) -> tuple[list[str], dict[str, str]]:
    program = str(PROGRAMS / "with_smolagents.py")
    options = ["chat", base_url, "unused", TASKS[task]]
    return [python_of("python", "smolagents"), program, *options], {}


def aider(base_url: str, folder: Path, number: int, task: str) -> tuple[list[str], dict[str, str]]:
    for command in ("init -q", "config user.email a@b.example", "config user.name n", "add -A", "commit -qm begin"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    options = ["--openai-api-base", f"{base_url}/v1", "--openai-api-key", "unused", "--model", "openai/policy"]
    options += ["--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--no-gitignore"]
    return [python_of("aider", "aider"), "-m", "aider", *options, "--message", TASKS[task], "numbers.txt"], {}


def qwen_code(base_url: str, folder: Path, number: int, task: str) -> tuple[list[str], dict[str, str]]:
    modules = npm_modules("@qwen-code/qwen-code")
    env = {"OPENAI_API_KEY": "unused", "OPENAI_BASE_URL": f"{base_url}/v1", "OPENAI_MODEL": "policy"}
    return [str(modules / ".bin" / "qwen"), "-p", TASKS[task], "--yolo"], env


def dspy(base_url: str, folder: Path, number: int, task: str) -> tuple[list[str], dict[str, str]]:
    how = ("one", "one", "votes", "n")[number]
    program = str(PROGRAMS / "with_dspy.py")
    options = [base_url, "unused", how, TASKS[task]]
    return [python_of("dspy", "dspy"), program, *options], {}


def in_turns(task: str, *replies: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"when": {"turn": turn, "contains": TASKS[task]}, "reply": reply, "delay_s": 0.5}
        for turn, reply in enumerate(replies)
    ]


def smolagents_says(task: str) -> list[dict[str, Any]]:
    add = [{"name": "add", "arguments": {"a": a, "b": b}} for a, b in ((2, 3), (5, 4))]
    note = {"name": "note", "arguments": {"text": "größe < 3 “so”"}}
    done = {"name": "final_answer", "arguments": {"answer": SAID[task]}}
    first = {"reasoning": "First I write.", "content": "I note it.", "tool_calls": [note, add[0]]}
    return in_turns(task, first, {"tool_calls": add[1:]}, {"tool_calls": [done]})


def aider_says(task: str) -> list[dict[str, Any]]:
    edit = f"I counted all of the {task} in the file. {SAID[task]}\n\nnext.txt\n```\n9\n```\n"
    return [
        {"when": {"contains": "Git commit message"}, "reply": {"content": COMMIT}},
        {"when": {"last_contains": TASKS[task]}, "reply": {"content": edit}, "delay_s": 0.5},
    ]


def qwen_says(task: str) -> list[dict[str, Any]]:
    """An answer without a call: only behind one that it sends a sub-agent over the talk, for its memory."""
    look = {"name": "glob", "arguments": {"pattern": "*.md"}}
    return [
        {"when": {"turn": 0, "last_contains": TASKS[task]}, "reply": {"content": SAID[task]}, "delay_s": 0.5},
        {"when": {"turn": 1, "last_contains": "memory"}, "reply": {"content": "", "tool_calls": [look]}},
        {"when": {"turn": 2}, "reply": {"content": "Nothing is to be noted."}},
    ]


def dspy_says(task: str) -> list[dict[str, Any]]:
    answer = f"[[ ## answer ## ]]\n{SAID[task]}\n\n[[ ## completed ## ]]"
    return [{"when": {"last_contains": TASKS[task]}, "reply": {"content": answer}, "delay_s": 0.2}]


@dataclass(frozen=True)
class Client:
    """A client, what the engine says to it, and what it makes.

    Attributes:
        calls: (call kind, transition) of each run's calls, in order.
        trajectories: how many trajectories each run is.
        one_folder: all runs work in one; its name stands in the prompt, and is part of the task.
    """

    name: str
    start: Callable[[str, Path, int, str], tuple[list[str], dict[str, str]]]
    says: Callable[[str], list[dict[str, Any]]]
    calls: tuple[tuple[str, str | None], ...]
    trajectories: tuple[int, int, int, int] = (1, 1, 1, 1)
    one_folder: bool = False


CLIENTS = [
    Client("smolagents", smolagents, smolagents_says, (("main", None), ("main", "realigned"), ("main", "realigned"))),
    Client("aider", aider, aider_says, (("main", None), ("auxiliary", "forked")), (1, 1, 2, 2)),
    # A commit message tells what was said before it; where several runs said the same, nothing tells whose it is.
    Client(
        "qwen-code",
        qwen_code,
        qwen_says,
        (("main", None), ("subagent", "forked"), ("subagent", "extends")),
        one_folder=True,
    ),
    Client("dspy", dspy, dspy_says, (("main", None),), (1, 1, 5, 2)),
    # Its requests hold no answer of an earlier one, so each answer is an attempt.
]


class Forwarder:
    """Bytes to a server and back, unchanged. ``ports``: from where the server sees the connections."""

    def __init__(self, url: str) -> None:
        self._to = (str(httpx.URL(url).host), int(httpx.URL(url).port or 80))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.ports: set[str] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._to)
                self.ports.add(f"127.0.0.1:{server.getsockname()[1]}")
                for one, other in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=(one, other), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@dataclass(frozen=True)
class Done:
    """What a client's runs printed, the engine's log, the steps of each run in order, and the task shown of each."""

    client: Client
    printed: list[str]
    log: list[dict[str, Any]]
    steps: list[list[dict[str, Any]]]
    tasks: dict[str, str]


@pytest.fixture(scope="module", params=CLIENTS, ids=lambda client: client.name)
def done(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Done]:
    client: Client = request.param
    home = tmp_path_factory.mktemp(client.name)
    rules = [rule for task in TASKS for rule in client.says(task)]
    script = {"model": "policy", "context_length": 200_000, "rules": rules, "default": {"content": "A title."}}
    (home / "script.json").write_text(json.dumps(script))
    with EngineProcess.start("scripted", args=["--script", home / "script.json"]) as engine:
        serve = ServeProcess(home / "data", str(engine.base_url))
        ways = [Forwarder(serve.base_url) for _ in ALL]
        try:
            printed = []
            for first, tasks in zip((0, 1, 2), RUNS, strict=True):
                started = [
                    begin(client, ways[first + n].base_url, home, first + n, task) for n, task in enumerate(tasks)
                ]
                for process in started:
                    out, err = process.communicate(timeout=280)
                    assert process.returncode == 0, out[-2000:] + err[-3000:]
                    printed.append(out)
            log = httpx.get(str(engine.base_url).removesuffix("/v1") + "/__log", timeout=120).json()["requests"]
            n_sampled = sum(len(row["choices"]) for row in log)
            eventually(lambda: serve.http.get("/api/v1/stats").json()["n_steps"] >= n_sampled)
            listed = serve.http.get("/api/v1/steps", params={"order": "created_at asc", "limit": 200}).json()["steps"]
            steps = [serve.http.get(f"/api/v1/steps/{step['step_uid']}").json() for step in listed]
            by_run = [[step for step in steps if step["metadata"]["connection"] in way.ports] for way in ways]
            assert sum(map(len, by_run)) == len(steps)
            yield Done(client, printed, log, by_run, task_of(serve.http))
        finally:
            for way in ways:
                way.close()
            serve.stop()


def begin(client: Client, base_url: str, home: Path, number: int, task: str) -> subprocess.Popen[str]:
    folder = home / ("0" if client.one_folder else str(number)) / "workspace"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "numbers.txt").write_text("two three four\n")
    command, env = client.start(base_url, folder, number, task)
    return subprocess.Popen(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder.parent), **QUIET, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_each_agent_got_its_answer(done: Done) -> None:
    for task, printed in zip(ALL, done.printed, strict=True):
        assert SAID[task] in printed


def test_no_sample_is_lost_and_all_ids_are_the_engines(done: Done) -> None:
    sampled = Counter(
        (tuple(choice["prompt_ids"]), tuple(choice["response_ids"])) for row in done.log for choice in row["choices"]
    )
    kept = Counter((tuple(step["prompt_ids"]), tuple(step["response_ids"])) for step in chain(*done.steps))
    assert kept == sampled


def test_each_run_is_its_own_trajectory(done: Done) -> None:
    uids_of_rounds = [{step["trajectory_uid"] for step in steps} for steps in done.steps]
    assert sum(map(len, uids_of_rounds)) == len(set.union(*uids_of_rounds))
    assert tuple(map(len, uids_of_rounds)) == done.client.trajectories
    assert {step["identity_source"] for step in chain(*done.steps)} == {"inferred"}


def test_runs_of_one_task_are_one_group(done: Done) -> None:
    groups = [{step["prompt_uid"] for step in steps if step["call_kind"] == "main"} for steps in done.steps]
    assert list(map(len, groups)) == [1] * len(ALL)
    assert groups[0] == groups[2] == groups[3] != groups[1]


def test_each_call_is_of_its_kind_and_hangs_where_it_belongs(done: Done) -> None:
    for steps, n_trajectories in zip(done.steps, done.client.trajectories, strict=True):
        if done.client.name == "dspy":
            assert {step["call_kind"] for step in steps} == {"main"}
        else:
            assert [step["call_kind"] for step in steps] == [kind for kind, _ in done.client.calls]
            joined = done.client.calls if n_trajectories == 1 else ()
            assert [step["transition"] for step in steps][: len(joined)] == [transition for _, transition in joined]
        assert [step["trainable"] for step in steps] == [step["call_kind"] == "main" for step in steps]
        assert not any("uncertain" in step["metadata"] for step in steps)


def test_the_task_that_is_shown_is_the_runs_own(done: Done) -> None:
    for task, steps in zip(ALL, done.steps, strict=True):
        for uid in {step["trajectory_uid"] for step in steps if step["call_kind"] == "main"}:
            assert TASKS[task] in done.tasks[uid]
