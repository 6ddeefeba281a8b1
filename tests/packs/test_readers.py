"""Every format is recognised by its content and read with all that it carries; bad input names field and fix."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.errors import InvalidInput
from core.packs import read_pack
from core.packs.clawgym import WORKSPACE
from core.packs.model import ANSWER, GRADE, HARBOR, REWARD_SH, Pack, PackFile, changes
from tests.packs import examples

DEMO = Path(__file__).parents[2] / "demo_data" / "policy" / "tasks"


def only(path):
    pack = read_pack(path)
    assert len(pack.tasks) == 1
    return pack.tasks[0]


def test_clawgym_folder_with_bytes_as_they_are(tmp_path):
    entry = {"input_mount_dir": WORKSPACE, "note": {"a": [1, None]}}
    task = only(examples.clawgym_folder(tmp_path / "pack", **entry))
    assert (task.task_id, task.query, task.category, task.checker) == ("t1", "Write output/t1.txt.", None, REWARD_SH)
    assert task.input_files["input/a b.csv"] == PackFile(b"\xef\xbb\xbfx,y\r\n1,2\r\n")
    assert task.input_files[".hidden"].content == b""
    assert set(task.checker_files) == {"reward.sh", "check.py"}
    assert task.extra == {"note": {"a": [1, None]}}


def test_shipped_tasks():
    pack = read_pack(DEMO)
    entries = [json.loads(path.read_text()) for path in DEMO.glob("*/*/data_entry.json")]
    assert {task.task_id: (task.query, task.split) for task in pack.tasks} == {
        one["task_id"]: (one["user_query"], one["metadata"]["split"]) for one in entries
    }


@pytest.mark.parametrize("mount", ["input", "{{input_dir}}", "/workspace/input", f"{WORKSPACE}/input", "./input/"])
def test_mount_below_the_workspace(tmp_path, mount):
    task = only(examples.clawgym_folder(tmp_path / "pack", input_mount_dir=mount))
    assert "input/input/a b.csv" in task.input_files


def test_clawgym_json_forms(tmp_path):
    hub = only(examples.lines(tmp_path / "hub.jsonl", examples.HUB))
    assert (hub.task_id, set(hub.checker_files), list(hub.input_files)) == (
        "task_00_xyz",
        {"reward.sh", "check.py"},
        ["input/data.csv"],
    )
    assert hub.extra == {"origin_template": examples.HUB["origin_template"]}
    persona = read_pack(examples.lines(tmp_path / "persona.jsonl", examples.PERSONA))
    assert persona.format == "clawgym_persona"
    assert persona.tasks[0].category == "Notes"
    assert persona.tasks[0].rules == (examples.RULE,)
    assert persona.tasks[0].extra["action"] == ["read", "write"]
    skill = read_pack(examples.lines(tmp_path / "skill.jsonl", examples.SKILL))
    assert skill.format == "clawgym_skill"
    assert list(skill.tasks[0].input_files) == ["input/a.json"]
    assert skill.tasks[0].checker_files["reward.sh"].text == "#!/bin/bash\npython3 {{reward_dir}}/check.py\n"
    assert skill.tasks[0].extra["path_profile"] == "template"
    (tmp_path / "entry.json").write_text(json.dumps([examples.SKILL_ENTRY]))
    entry = only(tmp_path / "entry.json")
    assert (list(entry.input_files), list(entry.checker_files)) == (["input/b.txt"], ["reward.sh"])


def test_pinchbench_of_both_generations(tmp_path):
    pack = read_pack(examples.pinch_folder(tmp_path / "bench"))
    old, new = pack.by_id["task_01_sum"], pack.by_id["task_sum_n"]
    assert (old.query, old.timeout_s, old.checker) == ("Add the numbers of `in.txt`.", 120.0, GRADE)
    assert old.input_files == {"in.txt": PackFile(b"1 2"), "papers/doc.pdf": PackFile(b"%PDF\xff\x00")}
    assert old.weights == {"code": 0.5, "rubric": 0.5}
    assert old.rubric == "### Criterion 1: Clear (Weight: 100%)"
    assert old.extra["criteria"] == ["The sum is right"]
    scope: dict = {}
    exec(old.checker_files["grade.py"].content, scope)
    assert scope["grade"]([], "") == {"sum": 1.0}
    assert [one["prompt"] for one in new.sessions] == ["Fix `sum.py`.", "What did you fix?"]
    assert new.query == "Fix `sum.py`."
    assert new.input_files["sum.py"].content == b"def sum_n(n): return 0\n"
    exec(new.checker_files["grade.py"].content, scope)
    assert scope["grade"]([], "") == {"fixed": 0.5}


def test_harbor_names_its_image(tmp_path):
    task = only(examples.harbor_folder(tmp_path / "bench"))
    assert (task.task_id, task.query, task.checker) == ("fix-git", "Fix the repository.\n", HARBOR)
    assert (task.image, task.timeout_s, task.tags, task.category) == (
        "x/fix:1",
        900.0,
        ("git",),
        "software-engineering",
    )
    assert task.extra["metadata"] == {"expert_time_estimate_min": 5.0, "written": {"$time": "2026-01-02"}}
    assert list(task.other_files) == ["README.md"]
    path = tmp_path / "bench/fix-git/task.toml"
    path.write_text(examples.TOML.replace('docker_image = "x/fix:1"\n', ""))
    assert only(tmp_path / "bench").image == "environment/Dockerfile"


def test_verl_rows_from_parquet_and_prompts_from_jsonl(tmp_path):
    folder = tmp_path / "math"
    folder.mkdir()
    rows = [{**examples.VERL, "extra_info": {"split": "test", "index": n}} for n in (3, 4)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "test.parquet")
    pack = read_pack(folder)
    assert [task.task_id for task in pack.tasks] == ["gsm8k-test-000003", "gsm8k-test-000004"]
    first = pack.tasks[0]
    assert (first.query, first.answer, first.checker, first.category, first.split) == (
        "What is 6 times 7?",
        "42",
        ANSWER,
        "math",
        "val",
    )
    assert first.extra["prompt"] == examples.VERL["prompt"]
    assert first.extra["agent_name"] == "tool_agent"
    plain = examples.lines(
        tmp_path / "p.jsonl",
        {"question": "2+2?", "answer": 4, "level": 1},
        {"id": "b", "prompt": "Go.", "split": "dev"},
    )
    first, second = sorted(read_pack(plain).tasks, key=lambda one: one.query)
    assert (first.task_id, first.query, first.answer, first.extra) == ("row-000000", "2+2?", 4, {"level": 1})
    assert (second.task_id, second.checker, second.split) == ("b", None, "val")


def test_version_is_of_the_content(tmp_path):
    first = read_pack(examples.clawgym_folder(tmp_path / "a"))
    second = read_pack(examples.clawgym_folder(tmp_path / "b"))
    assert first.version == second.version
    (tmp_path / "b/t1/input_files/.hidden").write_text("x")
    third = read_pack(tmp_path / "b")
    assert third.version != first.version
    assert changes(first, third) == {"added": [], "removed": [], "changed": ["t1"]}
    assert first.replaced(third.tasks).version == third.version


BAD_ROWS = {
    "not JSON": ("{", "bad.jsonl:1", "JSON"),
    "NaN": ('{"prompt": "a", "answer": NaN}', "bad.jsonl:1", "JSON"),
    "no task": ('{"a": 1}', "prompt", "docs/packs.md"),
    "no object": ("[1]", "bad.jsonl:1", "object"),
    "no user message": ('{"prompt": [{"role": "system", "content": "x"}]}', "prompt", "user"),
    "no truth": ('{"prompt": "a", "reward_model": {"style": "rule"}}', "reward_model.ground_truth", "answer"),
    "escape": (
        json.dumps({**examples.HUB, "input_files": [{"file_path": "../x", "content": ""}]}),
        "input_files",
        "relative",
    ),
    "absolute": (
        json.dumps({**examples.HUB, "input_files": [{"file_path": "/etc/x", "content": ""}]}),
        "input_files",
        "relative",
    ),
    "no content": (json.dumps({**examples.HUB, "input_files": [{"file_path": "x"}]}), "input_files[0].content", "text"),
    "level": (
        json.dumps({**examples.PERSONA, "rules": [{**examples.RULE, "scores": {"2": "x"}}]}),
        "rules[0].scores",
        "[0, 1]",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_name_field_and_fix(tmp_path, name):
    text, field, hint = BAD_ROWS[name]
    path = tmp_path / "bad.jsonl"
    path.write_text(text + "\n")
    with pytest.raises(InvalidInput) as caught:
        read_pack(path)
    assert caught.value.field == field
    assert hint in (caught.value.hint or "")
    assert "bad.jsonl" in caught.value.message


def test_bad_folders_name_field_and_place(tmp_path):
    pack = examples.clawgym_folder(tmp_path / "pack")
    secret = tmp_path / "secret"
    secret.write_text("key")
    link = pack / "t1/input_files/link"
    for make in (lambda: link.symlink_to(secret), lambda: os.mkfifo(link), lambda: link.symlink_to(tmp_path)):
        make()
        with pytest.raises(InvalidInput, match="link") as caught:
            read_pack(pack)
        assert caught.value.field == "path"
        link.unlink()
    for mount in ("/etc", "../up", 5):
        examples.clawgym_folder(pack, input_mount_dir=mount)
        with pytest.raises(InvalidInput) as caught:
            read_pack(pack)
        assert caught.value.field == "input_mount_dir"
        assert str(pack / "t1") in caught.value.message
    examples.clawgym_folder(pack, user_query=" ")
    with pytest.raises(InvalidInput) as caught:
        read_pack(pack)
    assert caught.value.field == "user_query"
    examples.write(pack, {"t1/data_entry.json": '{"task_id": "t2", "user_query": "x"}'})
    examples.clawgym_folder(pack, "t2")
    with pytest.raises(InvalidInput, match="more than one task"):
        read_pack(pack)
    with pytest.raises(InvalidInput, match="has no task"):
        Pack("empty", [])


def test_yaml_and_toml_are_bounded(tmp_path):
    bomb = "a: &a [x]\nb: [*a, *a]\n"
    bench = examples.write(tmp_path / "bench", {"tasks/task_x.md": f"---\nid: task_x\n{bomb}---\n\n## Prompt\n\nGo.\n"})
    with pytest.raises(InvalidInput, match="aliases"):
        read_pack(bench)
    harbor = examples.harbor_folder(tmp_path / "harbor")
    (harbor / "fix-git/task.toml").write_text("x = nan\n")
    with pytest.raises(InvalidInput, match=r"task\.toml\.x is nan"):
        read_pack(harbor)
    pinch = examples.pinch_folder(tmp_path / "pinch")
    (pinch / "assets/doc.pdf").unlink()
    with pytest.raises(InvalidInput, match=r"doc\.pdf") as caught:
        read_pack(pinch)
    assert caught.value.field == "workspace_files[1]"
