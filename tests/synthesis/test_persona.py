"""The persona route with a scripted engine that also gives wrong answers of every kind: each is caught at its stage."""

from __future__ import annotations

import json

import httpx
import pytest

from core.errors import AlreadyOwned, Conflict, InvalidInput, NotFound
from core.packs import read_pack, write_pack
from core.packs.clawgym_rows import form_of
from core.packs.lint import lint
from core.scoring.judge import GatewayJudge, JudgeSettings
from core.synthesis import FINISHED, Choice, SynthesisSettings, SynthesisStore, filtered, pack_of, progress, work
from core.synthesis.estimate import estimate
from core.synthesis.files import write_stage_files
from tests.conftest import scripted_engine
from tests.synthesis.tasks import (
    ALWAYS,
    CHECKING,
    COPY,
    CRASHES,
    EXISTS,
    JUDGE,
    OTHERS,
    ROWS,
    RUBRIC,
    RUBRICS,
    SOLVING,
    SOUND,
    WRITE,
    Direct,
    python,
    rule,
    seeds,
    task,
    usual,
)

INPUTS = task("")["input_files"]
ANSWERS = [
    task("BAKERY"),
    '{"question": "HALF',
    "I can't help with that.",
    {"question": "SHORT"},
    task("BAKERY", "amount"),
    task("LEAKED", question=OTHERS["HARBOUR"]),
    task("EASY", question=OTHERS["GARDEN"]),
    task("REPAIRED", question=OTHERS["CHOIR"]),
    task("COPIED", question=OTHERS["ROOF"], input_files=[*INPUTS, {"file_path": "data/old.txt", "content": ROWS * 2}]),
    task("FOLDER", question="FOLDER: x", input_files=[{"file_path": "reward/check.py", "content": "1"}]),
    task("WEAK", question=OTHERS["TRAM"]),
]
SCRIPT = [
    *(rule(one, WRITE, times=1) for one in ANSWERS),
    rule({**SOUND, "has_answer_leak": True, "reasons": "the total is in the question"}, JUDGE, "HARBOUR"),
    rule(python(ALWAYS), CHECKING, "GARDEN"),
    rule(python(CRASHES), CHECKING, "CHOIR", times=1),
    rule(RUBRIC, RUBRICS, "CHOIR"),
    rule(python(COPY), SOLVING, "ROOF"),
    rule(python(EXISTS), CHECKING, "TRAM"),
    *usual(),
]
REASONS = {
    ("tasks", 1): "malformed: the answer has no JSON object",
    ("tasks", 2): "malformed: the answer has no JSON object: \"I can't help",
    ("tasks", 3): "malformed: difficulty: it is missing",
    ("dedup", 4): "near-duplicate of r00000: cosine 0.9",
    ("judge", 5): "answer leak: the total is in the question",
    ("validation_code", 6): "does not hold after 2 answers: untouched: the untouched workspace scores 1.0",
    ("validation_code", 8): "answer leak: the input data/old.txt already is the result out/total.json",
    ("tasks", 9): "leak: the input reward/check.py",
    ("validation_code", 10): "mutants: ",
}


def settings_of(folder, **fields):
    values = {"n_tasks": len(ANSWERS), "workers": 1, "repair_rounds": 1, "n_runs": 1, "n_mutants": 2}
    made = {"run": "one", "route": "persona", "model": "scripted-1", "created_at": 1.0, **values, **fields}
    return SynthesisSettings(**{"seeds": str(folder / "seeds"), **made})


def engines_of(engine):
    studio = Direct(engine.base_url.removesuffix("/v1"))
    return lambda model: GatewayJudge(studio, JudgeSettings(model, max_tokens=4096))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, its engine's log, and the engine itself."""
    folder = tmp_path_factory.mktemp("persona")
    seeds(folder / "seeds")
    with scripted_engine(folder, {"rules": SCRIPT}) as engine:
        run = SynthesisStore(folder / "synthesis").create(settings_of(folder))
        assert work(run, engines_of(engine)) == FINISHED
        yield run, httpx.get(f"{engine.base_url.removesuffix('/v1')}/__log").json(), engine


def test_each_wrong_answer_is_a_row_with_its_reason(finished):
    state = finished[0].state()
    failed = {(row.stage, int(row.key[1:])): row.reason for row in state.rows.values() if row.state == "failed"}
    assert failed.keys() == REASONS.keys()
    for place, reason in REASONS.items():
        assert reason in failed[place], place


def test_every_answer_is_stored_with_its_prompt(finished):
    run, log, _ = finished
    state = run.state()
    assert state.n_calls == len(state.calls) == log["n_requests"]
    assert state.n_unpriced == state.n_calls
    assert state.n_tokens > 0
    prompts = {name: one.sha256 for name, one in run.templates().items()}
    row = state.rows["validation_code", "r00007"]
    assert row.prompts == {name: prompts[name] for name in ("solution", "checker")}
    assert (row.n_calls, row.cost_usd, row.models) == (3, None, ("scripted-1",))


def test_a_repair_sees_the_failure(finished):
    run, log, _ = finished
    product = run.state().rows["validation_code", "r00007"].product
    assert [one["failure_stage"] for one in product["history"]] == ["untouched"]
    asked = [one["body"]["messages"][-1]["content"] for one in log["requests"]]
    repairs = [text for text in asked if "CHOIR" in text and "An earlier answer failed at the step 'untouched'" in text]
    assert len(repairs) == 1
    assert "1 / 0" in repairs[0]


def test_the_pack_passes_lint_and_can_be_filtered(finished, tmp_path):
    run = finished[0]
    pack = pack_of(run)
    assert [one.task_id for one in pack.tasks] == ["one-r00000", "one-r00007"]
    assert [one.level for one in lint(pack, threshold=1.0) if one.level != "note"] == []
    measured = pack.tasks[0].extra["synthesis"]
    assert (measured["mutation_score"], measured["flakiness"], measured["solution_score"]) == (1.0, 0.0, 1.0)
    assert (pack.tasks[1].rules[0]["name"], pack.tasks[1].weights) == ("readable", {"code": 0.7, "rubric": 0.3})
    for format in ("clawgym", "hub.jsonl"):
        write_pack(pack, tmp_path / format, format.removesuffix(".jsonl"))
        again = read_pack(tmp_path / format)
        assert again.version == pack.version
        assert len(filtered(list(again.tasks), Choice(min_mutation_score=1.0))) == 2
    assert filtered(list(pack.tasks), Choice(min_difficulty=4)) == []


def test_stage_files_have_clawgyms_names_and_keys(finished, tmp_path):
    run = finished[0]
    names = write_stage_files(run, tmp_path / "stages")
    rows = {one: [json.loads(line) for line in (tmp_path / "stages" / one).read_text().splitlines()] for one in names}
    assert {name: len(one) for name, one in rows.items() if one} == {
        "01_task_prompts.jsonl": 11,
        "02_tasks.jsonl": 11,
        "03_dedup/tasks_kept.jsonl": 6,
        "03_dedup/tasks_removed.jsonl": 1,
        "05_judge_results.jsonl": 6,
        "06_judge_filter/judge_results_pass.jsonl": 5,
        "06_judge_filter/judge_results_fail.jsonl": 1,
        "08_validation_code_results.jsonl": 5,
        "08_validation_code_results_pass.jsonl": 2,
        "08_validation_code_results_fail.jsonl": 3,
        "10_llm_rubric_results.jsonl": 2,
        "11_filter_rubrics/llm_rubric_results_pass.jsonl": 1,
        "11_filter_rubrics/llm_rubric_results_skipped.jsonl": 1,
        "12_run_payload_dataset.jsonl": 2,
    }
    removed = rows["03_dedup/tasks_removed.jsonl"][0]
    assert removed["_dedup_matched_record_index"] == 0
    assert removed["_dedup_cosine_similarity"] >= 0.9
    payload = rows["12_run_payload_dataset.jsonl"][0]
    assert payload["prompt"].endswith("All file paths are relative to the workspace directory.")
    assert form_of(payload) == "clawgym_persona"
    read = read_pack(tmp_path / "stages/12_run_payload_dataset.jsonl")
    assert [one.checker for one in read.tasks] == ["reward_sh", "reward_sh"]


def test_the_folder_of_a_run(finished, tmp_path):
    run, _, _ = finished
    store = SynthesisStore(run.folder.parent)
    assert [one.settings for one in store.all()] == [run.settings]
    with pytest.raises(Conflict):
        store.create(run.settings)
    with pytest.raises(NotFound):
        store.get("../one")
    with run.writer(), pytest.raises(AlreadyOwned):
        run.decide("judge", "r00005", "accepted")
    state = progress(run).to_json()
    assert (state["state"], state["eta_s"]) == (FINISHED, 0.0)
    assert [one["n_failed"] for one in state["stages"]] == [0, 4, 1, 1, 3, 0]


def test_rows_are_accepted_rejected_edited_and_made_again(finished):
    """The last test of this run: it changes it."""
    run, log, engine = finished
    ask = engines_of(engine)
    before = log["n_requests"]
    with pytest.raises(InvalidInput, match="no product"):
        run.decide("tasks", "r00001", "accepted")
    run.decide("judge", "r00005", "accepted")
    run.decide("tasks", "r00007", "rejected")
    product = dict(run.state().rows["tasks", "r00000"].product)
    run.edit("tasks", "r00000", {**product, "expected_behavior": "total is the number 42"}, now=2.0)
    assert work(run, ask, until="judge") == "stopped after judge"
    state = run.state()
    assert state.n_calls == before + 1, "only the judge of the edited task is asked again"
    with pytest.raises(InvalidInput, match="no task of one passed"):
        pack_of(run)
    run.rerun("tasks", "r00001")
    assert work(run, ask) == FINISHED
    state = run.state()
    assert [one.task_id for one in pack_of(run).tasks] == ["one-r00000", "one-r00005"]
    assert pack_of(run).tasks[0].query.startswith("BAKERY")
    assert pack_of(run).tasks[0].extra["synthesis"]["edited_stages"] == ["tasks"]
    assert "malformed" in state.rows["tasks", "r00001"].reason
    # Both tasks: solution, checker, rubric; the judge of the edited one; the task that was made again.
    assert state.n_calls == before + 8


def test_settings_and_estimates(tmp_path):
    seeds(tmp_path / "seeds")
    for name, value in {"route": "x", "n_tasks": 0, "novelty": 2.0, "model": " ", "run": "a/b", "max_usd": 0.0}.items():
        with pytest.raises(InvalidInput) as caught:
            settings_of(tmp_path, **{name: value})
        assert caught.value.field == name
    cost = estimate(settings_of(tmp_path, n_tasks=10, model="gpt-4o-mini", repair_rounds=3))
    assert cost["calls"] == [50, 110]
    assert 0 < cost["usd"][0] < cost["usd"][1] < 1
    assert estimate(settings_of(tmp_path))["usd"] is None
