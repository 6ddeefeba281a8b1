"""The learning demo's tasks: folders against their generator, checks against ``reward.sh``, the agent's files."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from core.errors import InvalidInput
from core.rewards import score
from core.serving.tokenizer import load_tokenizer
from core.tasks.learn import POLICY
from core.tasks.line_agent import LineFiles
from core.tasks.pack import read_pack

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """``demo_data/make_policy.py``."""
    spec = importlib.util.spec_from_file_location("make_policy", ROOT / "demo_data" / "make_policy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_policy"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_folders_are_what_the_generator_writes(maker, tmp_path):
    maker.write_tasks(tmp_path, maker.SEED)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    kept = {path.relative_to(POLICY / "tasks"): path.read_bytes() for path in (POLICY / "tasks").rglob("*.*")}
    assert {name: made[name] for name in kept} == kept
    assert len([name for name in made if name.name == "check.py"]) == maker.N_TRAIN + maker.N_HELD_OUT


def test_held_out_tasks_are_not_trained_on():
    train, held_out = (read_pack(POLICY / "tasks" / split) for split in ("train", "val"))
    assert not {(t.prompt, *sorted(t.input_files.items())) for t in train} & {
        (t.prompt, *sorted(t.input_files.items())) for t in held_out
    }


@pytest.mark.parametrize("kind", ["copy", "follow", "join", "swap", "rename"])
def test_good_traces_are_right_and_bad_ones_are_not(maker, kind, tmp_path):
    """Both action languages agree, and an untouched workspace scores 0."""
    rng = random.Random(kind)
    for n in range(3):
        task = maker.draw_task(kind, rng)
        folder = tmp_path / "tasks" / f"{kind}-{n}"
        maker.write_task(folder, task, "train")
        read = read_pack(tmp_path / "tasks")[n]
        for name, actions, reward in (("none", (), 0.0), ("good", task.good, 1.0), ("bad", task.bad, 0.0)):
            workspace = tmp_path / f"{kind}-{n}-{name}"
            workspace.mkdir()
            read.write_inputs(workspace)
            files, memory = LineFiles(workspace), maker.MemoryFiles(task.files)
            assert [files.call(a) for a in actions[:-1]] == [memory.call(a) for a in actions[:-1]]
            assert score(workspace, read.check).value == reward
            if n == 0:
                script = [folder / "reward" / "reward.sh", workspace]
                printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
                assert float(printed.splitlines()[-1]) == reward


def test_actions_stay_in_the_workspace(tmp_path):
    (tmp_path / "secret").write_text("no")
    workspace = tmp_path / "work"
    workspace.mkdir()
    files = LineFiles(workspace)
    for action in ("read ../secret", "write ../x y", "move ../secret fox", "write fox", "read", "", "done now"):
        assert files.call(action) == "error"
    assert files.call("read fox") == "none"
    assert files.call("move fox owl") == "none"
    assert list(workspace.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"secret", "work"}


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("raise SystemExit(3)", "ended with code 3"),
        ("print('1.0')", "no JSON object with values"),
        ("print('x')", "no JSON object"),
        ("print('{\"a\": NaN}')", "not a finite number"),
        ('print(\'{"a": "1"}\')', "is no number"),
        ("import time; time.sleep(60)", "did not end within"),
    ],
)
def test_a_failed_check_is_no_score(tmp_path, program, error):
    path = tmp_path / "check.py"
    path.write_text(program)
    judged = score(
        tmp_path, {"verifier": "code_check", "program": str(path), "timeout_s": 1.0 if "sleep" in program else 60.0}
    )
    assert judged.value is None
    assert judged.error is not None and error in judged.error


def test_a_folder_that_is_no_task_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="has no task"):
        read_pack(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "data_entry.json").write_text('{"task_id": "a"}')
    with pytest.raises(InvalidInput, match="user_query"):
        read_pack(tmp_path)
    (tmp_path / "a" / "data_entry.json").write_text('{"task_id": "a", "user_query": "do"}')
    with pytest.raises(InvalidInput, match="no check"):
        read_pack(tmp_path)


def test_each_word_of_the_language_is_one_token(maker):
    tokenizer = load_tokenizer(POLICY / "model")
    for word in (*maker.NAMES, *maker.WORDS, maker.SPARE):
        assert len(tokenizer.encode(f" {word}")) == 1
    for word in ("read", "write", "move", "done", "ok"):
        assert len(tokenizer.encode(word)) == 1


def test_prompts_extend_each_other_token_for_token(maker):
    """What makes a trajectory one training row: the next prompt begins with this prompt and the answer."""
    tokenizer, task = load_tokenizer(POLICY / "model"), maker.draw_task("follow", random.Random(0))
    messages = maker.messages_of(task, task.good)
    for n in range(1, len(messages), 2):
        prompt = tokenizer.encode(tokenizer.render(messages[:n]))
        answered = [*prompt, *tokenizer.encode(messages[n]["content"]), tokenizer.token_id("<|im_end|>")]
        if n + 2 <= len(messages):
            later = tokenizer.encode(tokenizer.render(messages[: n + 2]))
            assert later[: len(answered)] == answered


def test_scores_are_of_the_shipped_weights():
    scores = json.loads((POLICY / "scores.json").read_text())
    assert scores["clean"]["success"]["T=0"]["all"] > 0.9
    assert scores["mixed"]["success"]["T=0"]["all"] < 0.1 < scores["mixed"]["success"]["T=1"]["all"] < 0.5
