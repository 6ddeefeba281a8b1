"""From seeds to a training file: models write a pack, an agent attempts it in sandboxes, the attempts are exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from core.client import StudioClient
from core.config import Settings
from core.packs.lint import lint
from core.rollouts.planning import Wish
from core.service import Service
from core.synthesis import Choice
from tests.conftest import eventually, scripted_engine
from tests.left_out import only_in_ci
from tests.synthesis.tasks import OTHERS, WRITE, rule, seeds, task, usual

pytestmark = [pytest.mark.timeout(900), only_in_ci("sixteen attempts in sandboxes")]
MODEL = "scripted-1"
SCRIPT_SEED = 2
"""With this seed, two of the four attempts at a task take its first way and two its second."""
NAMES = ["HARBOUR", "GARDEN", "CHOIR", "ROOF"]
READ = {"name": "read_file", "arguments": {"path": "data/sales.csv"}}
FINISH = {"name": "finish", "arguments": {"summary": "done"}}


def write(path: str, total: int) -> dict[str, Any]:
    return {"name": "write_file", "arguments": {"path": path, "content": json.dumps({"total": total})}}


def turns(name: str, replies: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The agent's rules for a task: at each turn, the calls of the way that the attempt's seed selects."""
    longest = max(map(len, replies))
    rules = []
    for turn in range(longest):
        variants = [{"tool_calls": [one[min(turn, len(one) - 1)]]} for one in replies]
        rules.append({"when": {"has_tools": True, "contains": name, "turn": turn}, "variants": variants})
    return rules


RIGHT = [READ, write("out/total.json", 42), FINISH]
OTHER_WAY = [{"name": "list_files", "arguments": {}}, READ, write("out/total.json", 42), FINISH]
WRONG = [READ, write("out/total.json", 41), FINISH]
WAYS = {
    "HARBOUR": [RIGHT, WRONG],
    "GARDEN": [RIGHT, WRONG],
    "CHOIR": [OTHER_WAY, WRONG],
    "ROOF": [WRONG],
}


def test_a_pack_is_written_rolled_out_and_exported(tmp_path: Any) -> None:
    answers = [rule(task(name, question=OTHERS[name]), WRITE, times=1) for name in NAMES]
    agents = [one for name, ways in WAYS.items() for one in turns(name, ways)]
    with scripted_engine(
        tmp_path, {"model": MODEL, "seed": SCRIPT_SEED, "rules": [*agents, *answers, *usual()]}
    ) as engine:
        service = Service.open(Settings(data_dir=tmp_path / "data", port=0, engine=str(engine.base_url)))
        try:
            _from_seeds_to_file(service, str(seeds(tmp_path / "seeds")))
        finally:
            service.close()


def _from_seeds_to_file(service: Service, seed_lists: str) -> None:
    host = service.synthesis
    fields = {"run": "loop", "n_tasks": 4, "workers": 1, "n_runs": 2, "n_mutants": 3, "seeds": seed_lists}
    run = host.start(fields)
    eventually(lambda: not host.status(run)["progress"]["in_progress"], timeout_s=300)
    assert (host.status(run)["error"], host.status(run)["progress"]["state"]) == (None, "finished")
    entry = host.keep_pack(run, Choice(min_mutation_score=1.0, max_flakiness=0.0))
    pack = service.rollouts.packs.get(entry.version)
    assert len(pack.tasks) == 4
    assert [one for one in lint(pack, threshold=1.0) if one.level != "note"] == []

    rollout = service.rollouts.start(entry.version, Wish(attempts=4, workers=2))
    eventually(lambda: service.rollouts.status(rollout)["progress"]["state"] != "running", timeout_s=500)
    attempts = rollout.attempts()
    assert len(attempts) == 16 and {one.outcome for one in attempts} <= {"solved", "failed"}
    assert service.ingest.catch_up(60)

    # The scripted engine's choice of a way is by the seed, and the same for each task.
    by_task = {name: [one.score for one in attempts if one.task_id == name] for name in pack.by_id}
    rates = {name: sum(score > 0.5 for score in scores) / 4 for name, scores in by_task.items()}
    measured = host.difficulty(run)
    assert {name: one.solve_rate for name, one in measured.items()} == rates
    assert rates["loop-r00003"] == 0.0 and all(0.1 <= rates[f"loop-r0000{n}"] <= 0.9 for n in range(3))
    same = host.same_behaviour(measured)
    assert {name: one.task_id for name, one in same.items()} == {"loop-r00001": "loop-r00000"}
    chosen = host.pack(run, Choice(min_solve_rate=0.1, max_solve_rate=0.9, distinct_behaviour=True))
    assert [one.task_id for one in chosen.tasks] == ["loop-r00000", "loop-r00002"]

    with StudioClient(service.base_url) as client:
        recipe = {"algorithm": "grpo", "n_rollouts": 4}
        groups = client.call("POST", "/api/v1/plans", {"recipe": recipe})["groups"]
        assert {one["prompt_uid"] for one in groups} >= {f"loop-r0000{n}@demo" for n in range(3)}
        best = {"algorithm": "sft"}
        written = client.call("POST", "/api/v1/exports", {"format": "clawgym_sft", "recipe": best})
    lines = [json.loads(line) for line in Path(written["path"]).read_text().splitlines()]
    # One line for each attempt that solved its task, and nothing of the calls that wrote the tasks.
    assert len(lines) == sum(score > 0.5 for scores in by_task.values() for score in scores)
    assert all(any(call["function"]["name"] == "finish" for call in _calls(line)) for line in lines)


def _calls(line: dict[str, Any]) -> list[Any]:
    return [call for message in line["messages"] for call in message.get("tool_calls") or ()]
