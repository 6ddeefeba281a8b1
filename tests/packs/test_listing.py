"""Search, facets, previews and changes of a pack's tasks, on the demo pack and on odd files."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from core.errors import InvalidInput, NotFound
from core.packs import changes, read_pack
from core.packs.edit import edited, parsed_json, with_splits
from core.packs.listing import FACETS, listing
from core.packs.model import Pack, PackFile, PackTask
from core.packs.preview import MOST_CHARACTERS, preview

FOLDER = Path(__file__).parents[2] / "demo_data" / "pack"


@pytest.fixture(scope="module")
def pack():
    return read_pack(FOLDER)


def test_every_word_must_be_there_in_any_case(pack):
    found = listing(pack).find("LOGS/app.log errors")
    assert {task.tags[1] for task in found} == {"log triage"} and len(found) == 4
    assert listing(pack).find("demo_003") == [pack.by_id["demo_003"]]
    assert listing(pack).find("no such words") == []
    assert len(listing(pack).find("")) == len(pack.tasks)


def test_facets_count_what_a_choice_would_give(pack):
    made = listing(pack)
    chosen = {"split": ["val"], "route": ["skill"]}
    counts = made.counts("", chosen)
    for name in FACETS:
        for value, n in counts[name].items():
            assert len(made.find("", {**chosen, name: [value]})) == n, (name, value)
    assert counts["route"] == {"persona": 6, "skill": 5}
    assert len(made.find("", {"split": ["val", "train"], "tag": ["bug fix", "recipe"]})) == 8
    with pytest.raises(InvalidInput, match="no facet"):
        made.find("", {"colour": ["red"]})


def test_thousands_of_tasks_are_found_at_once(pack):
    tasks = [replace(task, task_id=f"{task.task_id}-{i}") for i in range(50) for task in pack.tasks]
    made = listing(Pack("large", tasks))
    start = time.process_time()
    assert len(made.find("log triage", {"split": ["val"]})) == 50
    made.counts("log")
    assert time.process_time() - start < 1.0


def test_a_preview_shows_what_is_hidden_and_no_more_than_it_says():
    shown = preview("a.py", PackFile("print('a\u202eb')\x1b[2J\n".encode()))
    assert shown.text == "print('a\\u202eb')\\u001b[2J\n" and shown.n_hidden == 2 and shown.language == "python"
    binary = preview("a.png", PackFile(b"\x89PNG" + bytes(range(256)) * 4))
    assert not binary.is_text and binary.cut and binary.text.startswith("89 50 4e 47")
    long = preview("notes", PackFile(b"x" * (MOST_CHARACTERS + 1)))
    assert long.cut and len(long.text) == MOST_CHARACTERS and long.n_bytes == MOST_CHARACTERS + 1
    assert preview("a.txt", PackFile("\ufeffé\r\n".encode())).text == "é\r\n"


def test_an_edit_is_another_version_of_one_task(pack):
    new = edited(
        pack,
        "demo_001",
        {"query": "Other words", "tags": ["a", "a", " "], "timeout_s": 12, "category": ""},
        {"input_files": {"input/room.txt": "Room 9\n", "more.txt": "new\n"}, "checker_files": {}},
    )
    assert changes(pack, new) == {"added": [], "removed": [], "changed": ["demo_001"]}
    task = new.by_id["demo_001"]
    assert (task.query, task.tags, task.timeout_s, task.category) == ("Other words", ("a",), 12.0, None)
    assert task.input_files["input/room.txt"].text == "Room 9\n" and "more.txt" in task.input_files
    assert pack.by_id["demo_001"].input_files["input/room.txt"].text != "Room 9\n" and new.version != pack.version
    without = edited(new, "demo_001", {}, {"input_files": {"more.txt": None}})
    assert "more.txt" not in without.by_id["demo_001"].input_files
    script = without.by_id["demo_001"].checker_files["reward.sh"]
    kept = edited(without, "demo_001", {}, {"checker_files": {"reward.sh": "#!/bin/sh\necho 1\n"}})
    assert script.executable and kept.by_id["demo_001"].checker_files["reward.sh"].executable


@pytest.mark.parametrize(
    ("fields", "files", "field"),
    [
        ({"query": ""}, None, "query"),
        ({"query": 3}, None, "query"),
        ({"task_id": "x"}, None, "task_id"),
        ({"split": "test"}, None, "split"),
        ({"timeout_s": -1}, None, "timeout_s"),
        ({"timeout_s": "soon"}, None, "timeout_s"),
        ({"tags": "files"}, None, "tags"),
        ({"rules": [{"name": "x", "file_path": "a", "scores": {"2": "too much"}}]}, None, "rules[0].scores"),
        ({}, {"input_files": {"../a": "x"}}, "input_files"),
        ({}, {"input_files": {"input": "x"}}, "input_files"),
        ({}, {"somewhere": {"a": "x"}}, "files"),
        ({}, {"input_files": {"absent": None}}, "input_files"),
        ({}, None, "task"),
    ],
)
def test_a_wrong_edit_names_its_field(pack, fields, files, field):
    with pytest.raises((InvalidInput, NotFound)) as caught:
        edited(pack, "demo_001", fields, files)
    assert caught.value.field == field


def test_splits_are_set_for_many(pack):
    ids = [task.task_id for task in pack.tasks[:10]]
    new = with_splits(pack, ids, "val")
    assert Counter(task.split for task in new.tasks[:10]) == {"val": 10}
    assert Counter(task.split for task in with_splits(new, ids, None).tasks[:10]) == {None: 10}
    with pytest.raises(InvalidInput, match="nothing has changed"):
        with_splits(new, ids, "val")
    with pytest.raises(NotFound, match="no task"):
        with_splits(pack, ["absent"], "val")


def test_what_people_type_as_json():
    assert parsed_json(" ", "answer") is None and parsed_json('["a", 1]', "answer") == ["a", 1]
    with pytest.raises(InvalidInput, match="answer is not JSON"):
        parsed_json("[1,", "answer")


def test_a_task_without_its_route():
    assert listing(Pack("one", [PackTask("a", "Do it.")])).counts()["route"] == {"none": 1}
