"""The demo agent's tools stay inside the workspace and turn every failure into text for the model."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.tasks import demo_agent
from core.tasks.demo_agent import TOOLS, Workspace
from tests.effort import settings


@pytest.fixture
def outside_and_in(tmp_path: Path) -> tuple[Path, Workspace]:
    (tmp_path / "secret.txt").write_text("outside")
    root = tmp_path / "workspace"
    root.mkdir()
    (root / "a.txt").write_text("inside")
    (root / "out").symlink_to(tmp_path)
    return tmp_path, Workspace(root)


def call(files: Workspace, name: str, **arguments: object) -> str:
    return files.call(name, json.dumps(arguments))


def test_the_tools_work(outside_and_in: tuple[Path, Workspace]) -> None:
    _, files = outside_and_in
    assert call(files, "read_file", path="a.txt") == "inside"
    assert call(files, "write_file", path="new/b.txt", content="text é").startswith("Wrote 6")
    assert (files.root / "new" / "b.txt").read_text(encoding="utf-8") == "text é"
    assert "new/b.txt  7" in call(files, "list_files")
    assert call(files, "finish", summary="done") == "Finished."


@pytest.mark.parametrize("path", ["../secret.txt", "out/secret.txt", "new/../../secret.txt", "/etc/hostname", "."])
def test_nothing_outside_is_read_or_written(outside_and_in: tuple[Path, Workspace], path: str) -> None:
    outside, files = outside_and_in
    assert call(files, "read_file", path=path).startswith("error:")
    assert call(files, "write_file", path=path, content="broken in").startswith("error:")
    assert (outside / "secret.txt").read_text() == "outside"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([tool["function"]["name"] for tool in TOOLS]) | st.text(max_size=8),
    arguments=st.text(max_size=20)
    | st.dictionaries(
        st.sampled_from(["path", "content", "summary", "x"]),
        st.none() | st.integers() | st.text(max_size=5),
        max_size=3,
    ).map(json.dumps),
)
def test_no_call_of_a_model_raises(outside_and_in: tuple[Path, Workspace], name: str, arguments: str) -> None:
    outside, files = outside_and_in
    before = {path.name for path in outside.iterdir()}
    assert isinstance(files.call(name, arguments), str)
    assert {path.name for path in outside.iterdir()} == before


def test_the_agent_stands_alone() -> None:
    """It is the first thing that people copy: no import but the standard library and openai."""
    tree = ast.parse(Path(demo_agent.__file__).read_text(encoding="utf-8"))
    modules = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else node.names[0].name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert modules <= set(sys.stdlib_module_names) | {"openai"}
