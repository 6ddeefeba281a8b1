"""The demo end to end: run live against a service, shipped as a journal, loaded again."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from core.config import Settings
from core.errors import InvalidInput, NotFound
from core.service import Service
from core.serving.process import EngineProcess
from core.tasks.demo import DEMO_DATA, DemoRun, demo_script_path
from core.tasks.demo_load import load_demo, read_demo
from core.tasks.demo_policy import WAYS
from core.tasks.demo_tasks import demo_tasks
from core.types import View

TASKS = {task.task_uid: task for task in demo_tasks()}
FACTS = ["token_source", "transition", "call_kind", "source", "engine", "model", "policy_version", "agent"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    data = tmp_path_factory.mktemp("demo") / "data"
    opened = Service.open(Settings(data_dir=data, port=0, engine="http://127.0.0.1:9/v1"))
    with EngineProcess.start("scripted", args=["--script", demo_script_path()]) as engine:
        opened.engines.add("demo", str(engine.base_url), models=["demo-*"])
        yield opened
    opened.close()


def test_all_ways_of_a_task_live(service: Service) -> None:
    seen: list[str] = []
    run = DemoRun(
        service.base_url,
        n_rollouts=len(WAYS),
        tasks=[TASKS["demo-unique-guests"]],
        on_rollout=lambda rollout: seen.append(rollout.trajectory_uid),
    )
    run.start()
    assert run.join(60)
    status = run.status()
    assert (status["running"], status["done"], status["total"], status["error"]) == (False, 8, 8, None)
    assert service.ingest.catch_up(120)
    results = {rollout.trajectory_uid: rollout for rollout in run.results()}
    assert set(seen) == set(results)
    assert sorted(rollout.outcome for rollout in results.values()) == ["finished"] * 6 + ["max_turns", "stopped"]
    shapes = set()
    for uid, rollout in results.items():
        trajectory = service.pool.trajectories.get(uid)
        assert trajectory["complete"]
        assert trajectory["prompt_uid"] == rollout.task_uid
        assert rollout.score is not None
        assert trajectory["reward"] == rollout.score.value
        assert len(trajectory["steps"]) == rollout.n_turns
        assert [step["transition"] for step in trajectory["steps"]] == [None] + ["extends"] * (rollout.n_turns - 1)
        shapes.add(tuple(step["preview"] for step in trajectory["steps"]))
    assert len(shapes) == len(WAYS), "two rollouts went the same way"


def test_stop_leaves_open_what_did_not_end(service: Service) -> None:
    run = DemoRun(service.base_url, n_rollouts=50, max_parallel=2)
    run.start()
    time.sleep(0.3)
    run.stop()
    status = run.status()
    assert not status["running"]
    assert status["done"] < status["total"]
    assert status["error"] is None
    assert all(rollout.score is None for rollout in run.results() if rollout.outcome == "interrupted")
    with pytest.raises(InvalidInput, match="before"):
        run.start()


def test_a_studio_that_is_gone_ends_the_run() -> None:
    run = DemoRun("http://127.0.0.1:9", n_rollouts=3)
    run.start()
    assert run.join(30)
    assert run.status()["done"] == 0
    assert "sessions" in (run.status()["error"] or "")


def test_a_studio_with_a_key_asks_for_it(tmp_path: Path) -> None:
    service = Service.open(Settings(data_dir=tmp_path, port=0, engine="http://127.0.0.1:9/v1", api_key="studio-key"))
    try:
        with EngineProcess.start("scripted", args=["--script", demo_script_path()]) as engine:
            service.engines.add("demo", str(engine.base_url), models=["demo-*"])
            easy = [TASKS["demo-write-greeting"]]
            refused = DemoRun(service.base_url, n_rollouts=1, tasks=easy)
            refused.start()
            assert refused.join(30)
            assert "needs a key" in (refused.status()["error"] or "")
            run = DemoRun(service.base_url, n_rollouts=1, tasks=easy, api_key="studio-key")
            run.start()
            assert run.join(30)
            assert run.status()["error"] is None
            assert run.status()["mean_reward"] == 1.0
    finally:
        service.close()


def test_no_rollouts_is_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        DemoRun("http://127.0.0.1:9", n_rollouts=0)
    assert caught.value.field == "n_rollouts"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    data = tmp_path_factory.mktemp("loaded") / "data"
    opened = Service.open(Settings(data_dir=data, port=0, engine="http://127.0.0.1:9/v1"))
    opened.load_demo()
    yield opened
    opened.close()


def test_the_shipped_demo_is_small_and_says_what_it_holds(loaded: Service) -> None:
    assert (DEMO_DATA / "journal.jsonl.zst").stat().st_size < 1_000_000
    stats = loaded.pool.stats.totals()
    report = load_demo(loaded.journal, clock=lambda: 5.0)
    assert report == {
        "n_steps": stats["n_steps"],
        "n_trajectories": stats["n_trajectories"],
        "n_groups": stats["n_groups"],
        "loaded_at": 5.0,
    }
    readme = (DEMO_DATA / "README.md").read_text(encoding="utf-8")
    assert f"{report['n_steps']} captured calls and {report['n_trajectories']} completions" in readme
    groups = loaded.pool.groups.page(limit=50).to_pylist()
    assert len(groups) == len(TASKS) >= 6
    assert all(group["n_complete"] == group["n_scored"] == group["n_trajectories"] >= 4 for group in groups)
    assert sum(not group["zero_variance"] for group in groups) == len(groups) - 1


def test_loading_twice_changes_nothing(loaded: Service) -> None:
    def state() -> Any:
        trajectories = loaded.pool.trajectories.page(limit=500, order="started_at").to_pylist()
        return loaded.pool.stats.totals(), loaded.pool.stats.facets(View(), FACTS), trajectories

    before = state()
    loaded.load_demo()
    assert loaded.ingest.last_error is None
    assert state() == before


def test_loaded_steps_are_as_captured(loaded: Service) -> None:
    """Against the file itself: what the engine answered is what the pool reads back."""
    calls = [record for _, record in read_demo() if record["kind"] == "call"]
    for record in calls[::7]:
        step = loaded.pool.steps.get(record["step_uid"])
        choice = record["response"]["choices"][0]
        assert list(step["prompt_ids"]) == record["response"]["prompt_token_ids"]
        assert list(step["response_ids"]) == choice["token_ids"]
        assert list(step["response_logprobs"]) == [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert step["messages"] == record["request"]["messages"]
        assert step["tools"] == record["request"]["tools"]
        assert (step["token_source"], step["source"], step["engine"]) == ("engine", "blackbox", "demo")
        assert step["policy_version"] == record["policy_version"]


def test_the_shipped_demo_holds_no_secret_and_no_path() -> None:
    text = b"\n".join(payload for payload, _ in read_demo()).decode()
    for needle in ("Bearer", "authorization", "/tmp/", "/home/", "/root", "127.0.0.1"):
        assert needle not in text, needle


def test_a_missing_demo_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        list(read_demo(tmp_path / "journal.jsonl.zst"))


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_demo_data", DEMO_DATA / "make_demo_data.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_program_makes_what_is_shipped() -> None:
    """Made again, the demo differs in times and in nothing else. Half of it: the tasks around the change of
    the policy's version."""
    tasks = demo_tasks()[2:6]
    maker = program()
    made = maker.stable(maker.capture(demo_script_path(), tasks))
    shipped = [record for _, record in read_demo() if task_uid(record) in {task.task_uid for task in tasks}]
    assert len(made) == len(shipped)
    for new, old in zip(made, shipped, strict=True):
        assert without_times(new) == without_times(old)


def task_uid(record: dict[str, Any]) -> str:
    return str(record["identity"]["prompt_uid"] if record["kind"] == "call" else record["prompt_uid"])


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in record.items() if key not in {"at", "started_at", "finished_at"}}
    for name in ("client_headers", "connection"):  # the version of the SDK, the port it called from
        kept.pop(name, None)
    if kept.get("response"):
        kept["response"] = {key: value for key, value in kept["response"].items() if key not in {"id", "created"}}
    return kept
