"""A killed run goes on where it was: no answer is lost or asked for twice; budgets, cancelling and faults."""

from __future__ import annotations

import os
import signal
from collections import Counter

import httpx
import pytest

from core.errors import InvalidInput
from core.scoring.judge import GatewayJudge, JudgeSettings
from core.synthesis import FINISHED, SynthesisSettings, SynthesisStore, pack_of, progress, work
from core.synthesis.log import LOG, read_log
from tests.conftest import scripted_engine
from tests.left_out import only_in_ci
from tests.synthesis.tasks import OTHERS, WRITE, Direct, rule, seeds, task, usual

KILLED = 77


def settings_of(folder, run, **fields):
    values = {"n_tasks": 2, "workers": 1, "repair_rounds": 0, "n_runs": 1, "n_mutants": 1, **fields}
    return SynthesisSettings(run, "persona", "scripted-1", created_at=1.0, seeds=str(folder / "seeds"), **values)


def engines_of(engine):
    studio = Direct(engine.base_url.removesuffix("/v1"))
    return lambda model: GatewayJudge(studio, JudgeSettings(model, max_tokens=4096), sleep=lambda _: None)


def requests_of(engine):
    log = httpx.get(f"{engine.base_url.removesuffix('/v1')}/__log").json()
    return [one["body"]["messages"][-1]["content"] for one in log["requests"]]


@pytest.fixture
def folder(tmp_path):
    seeds(tmp_path / "seeds")
    return tmp_path


def work_until_killed(run, engine) -> bool:
    """Work in another process, which is killed with SIGKILL as soon as it has stored one thing; whether it was."""
    child = os.fork()
    if child == 0:
        try:
            work(run, engines_of(engine), report=lambda event: os.kill(os.getpid(), signal.SIGKILL))
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


@only_in_ci("a process for each stored row")
def test_killed_after_everything_that_it_stores(folder):
    script = {"rules": [rule(task("BAKERY"), WRITE, times=1), rule('{"question": ', WRITE), *usual()]}
    with scripted_engine(folder, script) as engine:
        run = SynthesisStore(folder / "synthesis").create(settings_of(folder, "killed"))
        n_kills = 0
        while work_until_killed(run, engine):
            n_kills += 1
            if n_kills % 4 == 0:  # as a kill inside of a write would leave it
                with (run.folder / LOG).open("ab") as file:
                    file.write(b'00000000 {"kind": "row", "row": {"st')
        # Two samples, two tasks (answer and row), novelty, judge, solution, checker, row, rubric.
        assert n_kills == 2 + 4 + 1 + 2 + 3 + 2
        asked = requests_of(engine)
        assert max(Counter(asked).values()) == 1 or [n for n in Counter(asked).values() if n > 1] == []
        state = run.state()
        assert state.n_calls == len(asked) == 6
        assert state.end == FINISHED
        assert read_log(run.folder / LOG)[1] == 0
        assert len(pack_of(run).tasks) == 1


def test_a_budget_stops_the_run_and_a_larger_one_goes_on(folder):
    with scripted_engine(folder, {"rules": [rule({"no": "task"}, WRITE)]}) as engine:
        run = SynthesisStore(folder / "synthesis").create(settings_of(folder, "b", n_tasks=6, workers=4, max_calls=3))
        assert work(run, engines_of(engine)) == "the budget of 3 calls is spent"
        assert len(requests_of(engine)) == 3
        state = progress(run)
        assert (state.n_calls, state.stages[1].n_failed, state.stages[1].n_waiting) == (3, 3, 3)
        assert state.eta_s is not None
        assert work(run, engines_of(engine), budget={"max_calls": 100, "max_total_tokens": 1}).startswith("the budget")
        assert work(run, engines_of(engine), budget={"max_calls": 100}) == FINISHED
        assert len(requests_of(engine)) == 6
        with pytest.raises(InvalidInput, match="price of scripted-1"):
            work(run, engines_of(engine), budget={"max_usd": 1.0})


def test_a_cancelled_run_goes_on(folder):
    with scripted_engine(folder, {"rules": [rule({"no": "task"}, WRITE)]}) as engine:
        run = SynthesisStore(folder / "synthesis").create(settings_of(folder, "c", n_tasks=5))

        def cancel(event):
            if event["event"] == "call":
                run.cancel()

        assert work(run, engines_of(engine), report=cancel) == "the run was cancelled"
        assert len(requests_of(engine)) == 1
        assert progress(run).state == "the run was cancelled"
        assert work(run, engines_of(engine)) == FINISHED
        assert len(requests_of(engine)) == 5


def test_a_row_that_the_engine_failed_is_made_when_the_run_goes_on(folder):
    broken = {"when": {"last_contains": WRITE}, "fault": "status:400", "times": 1}
    answers = [rule(task(name, question=text), WRITE, times=1) for name, text in list(OTHERS.items())[:2]]
    with scripted_engine(folder, {"rules": [broken, *answers, *usual()]}) as engine:
        run = SynthesisStore(folder / "synthesis").create(settings_of(folder, "d"))
        work(run, engines_of(engine), until="judge")
        failed = run.state().rows["tasks", "r00000"]
        assert failed.transient
        assert "the model answered 400" in failed.reason
        work(run, engines_of(engine), until="judge")
        assert [row.state for row in run.state().of_stage("judge")] == ["done", "done"]


def test_a_prompt_is_edited_in_the_folder_of_the_run(folder):
    with scripted_engine(folder, {"rules": [rule(task("BAKERY"), "In Danish")]}) as engine:
        run = SynthesisStore(folder / "synthesis").create(settings_of(folder, "e", n_tasks=1))
        path = run.folder / "prompts/task.txt"
        path.write_text("In Danish: {{category}}")
        work(run, engines_of(engine), until="tasks")
        row = run.state().rows["tasks", "r00000"]
        assert row.prompts == {"task": run.templates()["task"].sha256}
        assert requests_of(engine) == ["In Danish: tables"]
        path.write_text("{{nothing}}")
        run.rerun("tasks")
        work(run, engines_of(engine), until="tasks")
        assert "unknown place {{nothing}}" in run.state().rows["tasks", "r00000"].reason
