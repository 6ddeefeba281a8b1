"""Packs and reports over HTTP and on the command line, on a service that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core.client import StudioClient
from core.errors import StudioError
from core.packs import read_pack
from core.packs.library import PackLibrary
from core.rollouts import RunStore
from tests.conftest import ServeProcess, user_environment
from tests.report.made_run import make_run

DEMO = Path(__file__).parents[2] / "demo_data" / "pack"


@pytest.fixture
def demo(client: StudioClient) -> str:
    return str(client.call("POST", "/api/v1/packs", {"path": str(DEMO), "name": "demo"})["version"])


def test_a_pack_is_imported_searched_and_edited(client: StudioClient, demo: str) -> None:
    assert demo == read_pack(DEMO).version
    dry = client.call("POST", "/api/v1/packs", {"path": str(DEMO), "name": "other", "dry_run": True})
    names = {one["name"] for one in client.call("GET", "/api/v1/packs")["packs"]}
    assert dry["version"] == demo and "demo" in names and "other" not in names
    query = {"text": "log", "split": "val", "limit": 1}
    found = client.call("GET", f"/api/v1/packs/{demo}/tasks", query=query)
    assert found["n_tasks"] >= len(found["tasks"]) == 1 and found["facets"]["route"]
    task = client.call("GET", "/api/v1/packs/demo/task", query={"task": "demo_001"})
    assert task["input_files"]["input/room.txt"] > 0 and task["rules"]
    edit = {"task": "demo_001", "fields": {"tags": ["mine"]}, "files": {"input_files": {"new.txt": "words"}}}
    new = client.call("POST", f"/api/v1/packs/{demo}/edit", edit)
    assert new["changes"]["changed"] == ["demo_001"] and new["version"] != demo
    moved = client.call("POST", f"/api/v1/packs/{demo}/split", {"tasks": ["demo_002"], "split": "val", "dry_run": True})
    assert moved["changes"]["changed"] == ["demo_002"]
    assert client.call("GET", f"/api/v1/packs/{new['version']}/task", query={"task": "demo_001"})["tags"] == ["mine"]
    assert client.call("GET", f"/api/v1/packs/{demo}/task", query={"task": "demo_001"})["tags"] != ["mine"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "field"),
    [
        ("POST", "packs", {"path": "relative"}, 422, "path"),
        ("POST", "packs", {"path": "/nonexistent/pack"}, 422, "path"),
        ("GET", "packs/absent/tasks", None, 404, "pack"),
        ("GET", "packs/demo/tasks?limit=0", None, 422, "limit"),
        ("GET", "packs/demo/task", None, 422, "task"),
        ("GET", "packs/demo/task?task=absent", None, 404, "task"),
        ("POST", "packs/demo/edit", {"task": "demo_001", "fields": {"colour": 1}}, 422, "colour"),
        ("POST", "packs/demo/split", {"tasks": ["demo_001"], "split": "test"}, 422, "split"),
        ("GET", "reports/absent", None, 404, "run"),
        ("GET", "reports/absent/compare", None, 422, "with"),
    ],
)
def test_what_is_wrong_is_named(client: StudioClient, demo: str, method, path, body, status, field) -> None:
    with pytest.raises(StudioError) as refused:
        client.call(method, f"/api/v1/{path}", body)
    assert (refused.value.http_status, refused.value.field) == (status, field)


def test_reports_over_http_and_on_the_command_line(
    client: StudioClient, service: ServeProcess, demo: str, tmp_path: Path
) -> None:
    started: Any = service.process.args
    data = Path(started[started.index("--data") + 1])
    pack = read_pack(DEMO)
    runs, packs = RunStore(data / "rollouts"), PackLibrary(data / "packs")
    make_run(runs, packs, None, pack, {"demo_001": [1.0, 0.0], "demo_002": [0.25]}, run="first", n=2)
    make_run(runs, packs, None, pack, {"demo_001": [1.0, 1.0], "demo_002": [0.75, None]}, run="second", n=2)
    made = client.call("GET", "/api/v1/reports/first")
    assert made["total"]["n_scored"] == 3 and made["total"]["outcomes"]["skipped"] == 1
    assert "# Report of first" in made["markdown"]
    both = client.call("GET", "/api/v1/reports/first/compare", query={"with": "second"})
    assert both["paired"]["difference"]["value"] == pytest.approx(0.5)
    with pytest.raises(StudioError) as refused:
        client.call("GET", "/api/v1/reports/first", query={"price_prompt": "-1", "price_response": "1"})
    assert refused.value.field == "price_prompt"

    def command(*words: str) -> str:
        program = [sys.executable, "-m", "core.cli", *words, "--data", str(data)]
        ran = subprocess.run(program, capture_output=True, text=True, timeout=120, env=user_environment({}), check=True)
        return ran.stdout

    assert json.loads(command("report", "first", "second", "--json"))["paired"]["better"] == 2
    command("report", "first", "--out", str(tmp_path / "report.md"))
    assert (tmp_path / "report.md").read_text() == made["markdown"]
    assert json.loads(command("pack", "import", str(DEMO), "--name", "again"))["version"] == demo
    assert demo in command("pack", "list")
