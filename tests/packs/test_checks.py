"""The check of a task of every format, run on workspaces that solve it and that don't."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.packs import Pack, PackFile, PackTask, read_pack
from core.packs.checks import check_of, rubric_of
from core.packs.clawgym import reward_script
from core.packs.lint.run import lint_by_running
from core.packs.model import ANSWER, REWARD_SH
from core.packs.tree import write_tree
from core.rewards import score
from tests.packs import examples

CHECK = "import json, sys, pathlib\nws = pathlib.Path(sys.argv[1])\n"


def scored(task: PackTask, root: Path, **more):
    write_tree(root / "workspace", task.input_files)
    check = check_of(task, root / "check")
    return score(root / "workspace", {**check, **more})


def test_clawgym(tmp_path):
    (task,) = read_pack(examples.clawgym_folder(tmp_path / "pack")).tasks
    assert scored(task, tmp_path).outcome == "no_number"  # the example prints JSON and no number
    for name, row in (("hub", examples.HUB), ("persona", examples.PERSONA), ("skill", examples.SKILL)):
        row = {**row, "task_id": "x"} if name == "skill" else row
        (task,) = read_pack(examples.lines(tmp_path / f"{name}.jsonl", row)).tasks
        result = scored(task, tmp_path / name)
        if name == "skill":  # its hook prints JSON
            assert result.outcome == "no_number"
        else:
            assert (result.value, result.details["values"]) == (1.0, {"a": 1.0})
    (entry,) = read_pack(examples.lines(tmp_path / "entry.jsonl", examples.SKILL_ENTRY)).tasks
    assert scored(entry, tmp_path / "entry").value == 1.0


def test_pinchbench(tmp_path):
    pack = read_pack(examples.pinch_folder(tmp_path / "pinch"))
    values = {task.task_id: scored(task, tmp_path / task.task_id).value for task in pack.tasks}
    assert sorted(values.values()) == [0.5, 1.0]
    hybrid = next(task for task in pack.tasks if task.rubric)
    assert rubric_of(hybrid)["rubric"].startswith("### Criterion 1")


def test_grade_reads_the_transcript(tmp_path):
    program = (
        "def grade(transcript, workspace_path):\n"
        "    messages = [event['message'] for event in transcript if event['type'] == 'message']\n"
        "    parts = [item for message in messages for item in message['content']]\n"
        "    calls = [item for item in parts if isinstance(item, dict) and item.get('type') == 'toolCall']\n"
        "    return {'read': any(c['name'] == 'read' and c['params']['path'] == 'a' for c in calls), 'note': 'text'}\n"
    )
    task = PackTask("t", "q", checker="grade", checker_files={"grade.py": PackFile(program.encode())})
    call = {"id": "1", "function": {"name": "read", "arguments": json.dumps({"path": "a"})}}
    transcript = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "1", "content": "x"}]
    assert scored(task, tmp_path, payload={"transcript": transcript}).value == 1.0
    assert scored(task, tmp_path / "again").value == 0.0


def test_harbor(tmp_path):
    (task,) = read_pack(examples.harbor_folder(tmp_path / "pack")).tasks
    check = check_of(task, tmp_path / "check")
    assert check["image"] == "x/fix:1" and check["timeout_s"] == 60.0
    (tmp_path / "workspace").mkdir()
    assert score(tmp_path / "workspace", check).outcome == "refused"
    assert score(tmp_path / "workspace", {**check, "without_image": True}).value == 1.0


@pytest.mark.parametrize(
    ("row", "good", "bad"),
    [
        (examples.VERL, "#### 42", "42"),
        ({**examples.VERL, "data_source": "math"}, "so 42", "43"),
        ({"prompt": "Where?", "answer": "Paris"}, "Paris.", "Rome"),
        ({"question": "6 * 7?", "answer": "6 times 7\n#### 42"}, "it is 42", "41"),
        ({**examples.VERL, "reward_model": {"ground_truth": {"target": ["a", "b"]}}, "data_source": "nq"}, "B", "c"),
    ],
)
def test_answers_of_rows(tmp_path, row, good, bad):
    (task,) = read_pack(examples.lines(tmp_path / "rows.jsonl", row)).tasks
    check = check_of(task, tmp_path / "check")
    assert task.checker == ANSWER
    assert score(tmp_path, {**check, "payload": {"final_message": good}}).value == 1.0
    assert score(tmp_path, {**check, "payload": {"final_message": bad}}).value == 0.0
    assert score(tmp_path, check).outcome == "missing"


def test_no_check_by_code(tmp_path):
    assert check_of(PackTask("t", "q", rules=(examples.RULE,)), tmp_path)["verifier"] == "rubric"
    assert check_of(PackTask("t", "q", rubric="Be clear."), tmp_path)["rubric"] == "Be clear."
    check = check_of(PackTask("t", "q"), tmp_path)
    assert check["verifier"] == "human"
    assert score(tmp_path, check).outcome == "refused"
    assert rubric_of(PackTask("t", "q")) is None


def task(name, check, **fields):
    checker = {"reward.sh": reward_script(), "check.py": PackFile((CHECK + check).encode())}
    return PackTask(name, "q", checker=REWARD_SH, checker_files=checker, **fields)


def test_lint_that_runs_finds_each_fault(tmp_path):
    say = "print(json.dumps({'a': %s}))\n"
    tasks = [
        task("sound", say % "0.0"),
        task("free", say % "0.5"),
        task("itself", say % "any('needle' in p.read_text() for p in ws.rglob('*.py'))"),
        task("writes", "(ws / 'x').mkdir()\n(ws / 'x' / 'made').write_text('1')\n" + say % "0.0"),
        task("changes", "(ws / 'in.txt').write_text('b')\n" + say % "0.0", input_files={"in.txt": PackFile(b"a")}),
        task("hangs", "import time\ntime.sleep(60)\n"),
        task("crashes", "import nowhere_at_all\n"),
        task("silent", "try:\n    import nowhere_at_all\nexcept ImportError:\n    pass\n" + say % "0.0"),
        task("nothing", "print('{}')\n"),
        PackTask("answer", "q", checker=ANSWER, answer=1),
    ]
    seen = []
    findings = lint_by_running(Pack("p", tasks), timeout_s=3.0, report=seen.append)
    assert len(seen) == len(tasks) - 1
    by_task = {}
    for one in findings:
        by_task.setdefault(one.task_ids[0], set()).add((one.check, one.level))
    assert by_task == {
        "free": {("untouched_scores", "error")},
        "itself": {("untouched_scores", "error"), ("checker_finds_itself", "warning")},
        "writes": {("checker_writes", "note")},
        "changes": {("checker_writes", "note")},
        "hangs": {("check_timed_out", "error")},
        "crashes": {("check_crashed", "error"), ("checker_import", "warning")},
        "silent": {("checker_import", "warning")},
    }
    assert "x/made" in next(one.message for one in findings if one.task_ids == ("writes",))
