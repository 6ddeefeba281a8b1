"""``claw-studio pack`` on small packs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from core.errors import NotFound
from core.pack_commands import pack_app
from core.packs import read_pack
from tests.packs import examples


def run(*arguments):
    return CliRunner().invoke(pack_app, list(map(str, arguments)), catch_exceptions=True)


def test_show_convert_and_lint(tmp_path):
    pack = examples.clawgym_folder(tmp_path / "pack")
    shown = json.loads(run("show", pack, "--json").stdout)
    assert (shown["tasks"], shown["format"], shown["input_files"]["max"]) == (1, "clawgym", 2)
    assert shown["version"] in run("show", pack).stdout
    one = json.loads(run("show", pack, "--task", "t1").stdout)
    assert one["input_files"] == {".hidden": 0, "input/a b.csv": 13}
    assert isinstance(run("show", pack, "--task", "t9").exception, NotFound)

    examples.clawgym_folder(pack, "t2", user_query="Sort the lines of every file by date.")
    out = tmp_path / "out.jsonl"
    converted = json.loads(run("convert", pack, out, "--format", "hub", "--val", "0.5").stdout)
    assert read_pack(out).version == converted["version"]
    assert sorted(task.split for task in read_pack(out).tasks) == ["train", "val"]

    assert run("lint", pack).exit_code == 0
    (pack / "t1/reward/check.py").write_text("import nowhere_at_all\n")
    linted = run("lint", pack, "--json")
    assert linted.exit_code == 1
    assert json.loads(linted.stdout)["check"] == "checker_import"


def test_notes_say_what_others_do_not_use(tmp_path):
    pack = examples.harbor_folder(tmp_path / "pack")
    notes = json.loads(run("convert", pack, tmp_path / "out").stdout)["notes"]
    assert notes == [
        "1 of 1 tasks have a check of a kind that clawgym does not run",
        "1 of 1 tasks need a container image, which this format does not name",
    ]


@pytest.mark.parametrize("command", ["show", "lint"])
def test_a_missing_path(tmp_path, command):
    assert "does not exist" in str(run(command, tmp_path / "nothing").exception)
