"""The synthesis over HTTP, with a worker process of its own: from the estimate to the stored pack, then cancel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.client import StudioClient
from core.config import Settings
from core.errors import StudioError
from core.service import Service
from tests.conftest import eventually, scripted_engine
from tests.synthesis.made_run import make_run
from tests.synthesis.tasks import OTHERS, WRITE, rule, seeds, task, usual

API = "/api/v1/synthesis"


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, StudioClient, Path]]:
    """A service whose engine writes one good task and one malformed answer, then waits long before it answers."""
    folder = tmp_path_factory.mktemp("synthesis-api")
    slow = {**rule(task("TRAM", question=OTHERS["TRAM"]), WRITE), "delay_s": 8}
    rules = [rule(task("BAKERY"), WRITE, times=1), rule('{"question": ', WRITE, times=1), slow, *usual()]
    seeds(folder / "seeds")
    with scripted_engine(folder, {"rules": rules}) as engine:
        service = Service.open(Settings(data_dir=folder / "data", port=0, engine=str(engine.base_url)))
        with StudioClient(service.base_url) as client:
            yield service, client, folder
        service.close()


def ended(client: StudioClient, run: str) -> dict[str, Any]:
    eventually(lambda: not client.call("GET", f"{API}/{run}")["progress"]["in_progress"], timeout_s=200)
    status: dict[str, Any] = client.call("GET", f"{API}/{run}")
    assert status["error"] is None
    return status


def test_a_run_over_http(studio: tuple[Service, StudioClient, Path]) -> None:
    service, client, folder = studio
    fields = {"run": "first", "n_tasks": 2, "workers": 1, "n_runs": 2, "n_mutants": 2, "seeds": str(folder / "seeds")}
    dry = client.call("POST", API, {**fields, "dry_run": True})
    assert (dry["model"], dry["estimate"]["calls"], client.call("GET", API)["runs"]) == ("scripted-1", [10, 22], [])
    started = client.call("POST", API, {**fields, "until": "tasks", "prompts": {"rubric": "Skip: {{query}} "}})
    assert started["estimate"]["calls"] == [10, 22]
    status = ended(client, "first")
    assert status["progress"]["state"] == "stopped after tasks"
    rows = client.call("GET", f"{API}/first/rows", query={"stage": "tasks"})
    assert [(one["row"], one["state"], one["passes"]) for one in rows["rows"]] == [
        ("r00000", "done", True),
        ("r00001", "failed", False),
    ]
    assert client.call("GET", f"{API}/first/rows", query={"stage": "tasks", "state": "failed"})["n_rows"] == 1
    row = client.call("GET", f"{API}/first/row", query={"stage": "tasks", "row": "r00000"})
    product = {**row["product"], "question": OTHERS["CHOIR"]}
    for body in (
        {"stage": "tasks", "row": "r00000", "action": "edit", "product": product},
        {"stage": "tasks", "row": "r00000", "action": "reject"},
        {"stage": "tasks", "row": "r00000", "action": "undo"},
    ):
        assert client.call("POST", f"{API}/first/row", body) == {"done": True}
    prompts = {one["name"]: one for one in client.call("GET", f"{API}/first/prompts")["prompts"]}
    assert (prompts["rubric"]["changed"], prompts["task"]["changed"]) == (True, False)
    put = client.call("PUT", f"{API}/first/prompts/rubric", {"text": None})
    assert not put["changed"]
    client.call("POST", f"{API}/first/resume", {})
    status = ended(client, "first")
    assert (status["progress"]["state"], status["progress"]["n_ready"]) == ("finished", 1)
    # Two tasks; judge, solution, checker, rubric of the edited one.
    assert status["progress"]["n_calls"] == 6
    made = client.call("POST", f"{API}/first/pack", {"min_mutation_score": 0.5, "dry_run": True})
    assert made["task_ids"] == ["first-r00000"]
    assert client.call("GET", "/api/v1/packs")["packs"] == []
    stored = client.call("POST", f"{API}/first/pack", {"name": "mine"})
    assert stored["version"] == made["version"]
    query = client.call("GET", "/api/v1/packs/mine/task", query={"task": "first-r00000"})["query"]
    assert query.startswith("CHOIR")
    (measured,) = client.call("GET", f"{API}/first/difficulty")["tasks"]
    assert (measured["solve_rate"], measured["same_as"]) == (None, None)
    assert service.synthesis.cancel("first") is False


def test_a_run_is_cancelled_and_refuses_changes_meanwhile(studio: tuple[Service, StudioClient, Path]) -> None:
    service, client, folder = studio
    fields = {"run": "slow", "n_tasks": 3, "workers": 1, "seeds": str(folder / "seeds")}
    client.call("POST", API, fields)
    eventually(lambda: client.call("GET", f"{API}/slow")["progress"]["stages"][0]["n_done"] == 3, timeout_s=100)
    for method, path, body in (
        ("POST", "slow/resume", {}),
        ("POST", "slow/row", {"stage": "task_prompts", "row": "r00000", "action": "reject"}),
    ):
        with pytest.raises(StudioError) as refused:
            client.call(method, f"{API}/{path}", body)
        assert (refused.value.http_status, refused.value.field) == (409, "run")
    assert client.call("POST", f"{API}/slow/cancel")["cancelling"]
    # The call in flight takes 8 s; what ends the process at once is what a closing service does after its patience.
    service.synthesis._supervisors.end("slow", timeout_s=0.0)
    status = client.call("GET", f"{API}/slow")
    assert (status["progress"]["state"], status["progress"]["in_progress"]) == ("interrupted", False)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "field"),
    [
        ("POST", "", {"route": "x"}, 422, "route"),
        ("POST", "", {"run": "a/b", "dry_run": True}, 422, "run"),
        ("POST", "", {"seeds": "relative", "dry_run": True}, 422, "seeds"),
        ("POST", "", {"seeds": "/nonexistent", "dry_run": True}, 422, "seeds"),
        ("POST", "", {"route": "skill", "skills": "/nonexistent\0", "dry_run": True}, 422, "skills"),
        ("POST", "", {"until": "nothing"}, 422, "stage"),
        ("POST", "", {"prompts": {"nothing": "x"}}, 422, "prompts"),
        ("GET", "/absent", None, 404, "run"),
        ("GET", "/made/rows?stage=nothing", None, 422, "stage"),
        ("GET", "/made/row?stage=tasks&row=absent", None, 404, "row"),
        ("POST", "/made/row", {"stage": "tasks", "action": "accept"}, 422, "row"),
        ("POST", "/made/row", {"stage": "tasks", "row": "r00000", "action": "edit"}, 422, "product"),
        ("POST", "/made/row", {"stage": "tasks", "row": "r00001", "action": "accept"}, 422, "key"),
        ("PUT", "/made/prompts/absent", {"text": "x"}, 422, "prompts"),
        ("PUT", "/made/prompts/task", {"text": "{{absent}}"}, 422, "prompts.task"),
        ("POST", "/made/pack", {"min_mutation_score": 1.0}, 422, "min_mutation_score"),
        ("POST", "/made/pack", {"min_solve_rate": 0.9, "max_solve_rate": 0.1}, 422, "min_solve_rate"),
        ("POST", "/made/resume", {"until": "nothing"}, 422, "stage"),
    ],
)
def test_what_is_wrong_is_named(
    studio: tuple[Service, StudioClient, Path], method: str, path: str, body: Any, status: int, field: str
) -> None:
    service, client, _ = studio
    if not any(one.settings.run == "made" for one in service.synthesis.store.all()):
        make_run(service.synthesis.store)
    with pytest.raises(StudioError) as refused:
        client.call(method, f"{API}{path}", body)
    assert (refused.value.http_status, refused.value.field) == (status, field)
