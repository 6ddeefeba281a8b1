"""``claw-studio synthesise`` through a real gateway, which captures the calls."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from core.cli import command_line, connect, read_settings
from core.errors import InvalidInput, NotFound
from core.synthesis import SynthesisStore
from tests.conftest import eventually, scripted_engine
from tests.synthesis.tasks import WRITE, rule, seeds, task


@pytest.fixture
def run_command(tmp_path):
    def run(*arguments: object) -> object:
        place = ["--data", str(tmp_path / "data")]
        return CliRunner().invoke(command_line(), ["synthesise", *map(str, arguments), *place])

    return run


def test_a_run_is_made_shown_edited_and_gone_on_with(tmp_path, run_command, monkeypatch):
    script = {"rules": [rule(task("BAKERY"), WRITE, times=1), rule("no", WRITE, times=1), rule(task("TRAM"), WRITE)]}
    with scripted_engine(tmp_path, script) as engine:
        monkeypatch.setenv("CLAW_STUDIO_ENGINE", str(engine.base_url))
        options = ("--model", "scripted-1", "--tasks", 2, "--workers", 1, "--seeds", seeds(tmp_path / "seeds"))
        dry = run_command("start", *options, "--dry-run")
        assert json.loads(dry.stdout)["calls"] == [10, 22]
        started = run_command("start", *options, "--run", "first", "--until", "tasks")
        assert started.exit_code == 0, started.output
        assert json.loads(started.stdout)["end"] == "stopped after tasks"
        lines = run_command("show", "first", "--stage", "tasks").stdout.splitlines()
        assert [line.split()[:2] for line in lines] == [["r00000", "done"], ["r00001", "failed"]]
        assert "1 done, 1 failed" in run_command("show", "first").stdout
        assert "r00001" not in run_command("show", "first", "--stage", "tasks", "--row", "r00000").stdout

        (tmp_path / "new.json").write_text(json.dumps(task("CHOIR")))
        assert run_command("edit", "first", "tasks", "r00000", tmp_path / "new.json").exit_code == 0
        assert run_command("rerun", "first", "tasks", "r00001").exit_code == 0
        assert run_command("reject", "first", "tasks", "r00000").exit_code == 0
        settings = read_settings(data_dir=tmp_path / "data")
        with connect(settings) as client:

            def both() -> list[dict[str, object]]:
                steps = client.call("GET", "/api/v1/steps", query={"channel": "synthesis"})["steps"]
                return steps if len(steps) == 2 else []

            rows = eventually(both)
        assert {(one["call_kind"], one["channel"]) for one in rows} == {("auxiliary", "synthesis")}
    state = SynthesisStore(tmp_path / "data/synthesis").get("first").state()
    assert state.rows["tasks", "r00000"].product["question"].startswith("CHOIR")
    assert not state.passes("tasks", "r00000")
    assert state.current("tasks", "r00001") is None
    assert isinstance(run_command("pack", "first", tmp_path / "out").exception, InvalidInput)
    assert json.loads(run_command("list").stdout)["run"] == "first"


def test_errors_name_what_is_wrong(tmp_path, run_command):
    assert isinstance(run_command("show", "nothing").exception, NotFound)
    for options in (["--route", "x"], ["--route", "skill"], ["--isolation", "x"]):
        assert isinstance(run_command("start", "--model", "m", "--dry-run", *options).exception, InvalidInput)
