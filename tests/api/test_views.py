"""Saved views and dataset versions by their names: HTTP and the command line, against views spelled out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.client import StudioClient
from core.errors import NotFound
from tests.conftest import ServeProcess
from tests.test_cli import cli

from .test_batches import wire_steps

MEANT = {"filters": {"prompt_uid": ["va", "vb"]}, "where": "step_index = 1"}
GRPO = {"algorithm": "grpo", "n_rollouts": 2, "require_complete": False, "max_uses": None}


class Studio(ServeProcess):
    """With the folder that commands are given."""

    def __init__(self, data: Path) -> None:
        super().__init__(data, "http://127.0.0.1:9/v1")
        self.data = str(data)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    service = Studio(tmp_path_factory.mktemp("views") / "data")
    steps = [step for group in ("va", "vb", "vc") for k in range(2) for step in wire_steps(group, k)]
    answer = service.http.post("/api/v1/steps", json={"steps": steps})
    assert answer.json()["ingested"]
    assert service.http.put("/api/v1/views/mine", json=MEANT).json() == {"name": "mine", "view": MEANT}
    yield service
    assert service.stop() == 0


@pytest.fixture
def client(saved: Studio) -> Iterator[StudioClient]:
    with StudioClient(saved.base_url) as opened:
        yield opened


def chosen(plan: dict[str, Any]) -> list[str]:
    return [uid for group in plan["groups"] for one in group["trajectories"] for uid in one["step_uids"]]


def test_a_saved_view_is_meant_by_its_name(saved: Studio, client: StudioClient) -> None:
    http = saved.http
    listed = [row["step_uid"] for row in http.get("/api/v1/steps", params={"view": "mine"}).json()["steps"]]
    assert sorted(listed) == ["va-0.1", "va-1.1", "vb-0.1", "vb-1.1"]
    assert [row["step_uid"] for row in client.steps(view="mine", prompt_uid="va")] == ["va-0.1", "va-1.1"]
    assert "mine" in [row["name"] for row in http.get("/api/v1/views").json()["views"]]

    expected = http.post("/api/v1/plans", json={"view": MEANT, "recipe": GRPO}).json()
    assert sorted(chosen(expected)) == sorted(listed)
    ways: list[dict[str, Any]] = [
        {"view": "mine", "recipe": GRPO},
        {"view": {"filters": {"saved_view": "mine"}}, "recipe": GRPO},
        {"recipe": {**GRPO, "view": "mine"}},
    ]
    for body in ways:
        assert chosen(http.post("/api/v1/plans", json=body).json()) == chosen(expected), body
    fetched = http.post("/api/v1/batches/fetch", json={"consumer": "v", "view": "mine", "recipe": GRPO, "shared": True})
    assert [step["step_uid"] for step in fetched.json()["steps"]] == chosen(expected)
    with pytest.raises(NotFound, match="nobody"):
        client.call("POST", "/api/v1/plans", {"view": "nobody"})
    assert http.get("/api/v1/steps", params={"view": "nobody"}).status_code == 404
    assert http.put("/api/v1/views/other", json={"where": "nope = 1"}).status_code == 422
    assert http.put("/api/v1/views/other", json={"filters": {"agent": "x"}}).status_code == 200
    assert http.delete("/api/v1/views/other").json() == {"deleted": "other"}
    assert http.delete("/api/v1/views/other").status_code == 404


def test_a_version_is_trained_as_it_was_frozen(saved: Studio, client: StudioClient) -> None:
    http, data = saved.http, saved.data
    frozen = cli("freeze", "mine-1", "--data", data, "--view", "mine", "--recipe", json.dumps(GRPO))
    assert frozen.returncode == 0, frozen.stderr
    assert json.loads(frozen.stdout)["n_steps"] == 4
    named = {"recipe": {**GRPO, "dataset": "mine-1"}}
    before = http.post("/api/v1/plans", json=named).json()
    client.annotate("reward", -9.0, trajectory_uid="va-0", author="kim", source="human")
    assert http.post("/api/v1/plans", json=named).json() == before
    assert http.post("/api/v1/plans", json={"view": "mine", "recipe": GRPO}).json()["groups"] != before["groups"]
    body = {"consumer": "w", "dataset": "mine-1", "shared": True}
    fetched = http.post("/api/v1/batches/fetch", json=body).json()
    assert [step["step_uid"] for step in fetched["steps"]] == chosen(before)
    assert fetched["dataset_version"]["name"] == "mine-1"
    assert http.post("/api/v1/batches/fetch", json={**body, "view": "mine"}).status_code == 422
    assert http.post("/api/v1/batches/fetch", json={**body, "dataset": "nobody"}).status_code == 404
    exported = cli("export", "steps_parquet", "--data", data, "--dataset", "mine-1", "--recipe", json.dumps(GRPO))
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stdout)["n_rows"] == 4
    views = [json.loads(line) for line in cli("views", "--data", data).stdout.splitlines()]
    assert MEANT in [row["view"] for row in views]
