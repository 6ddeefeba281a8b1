"""Findings of the lint on tasks that have exactly one fault, and near-duplicates beside a brute force."""

from __future__ import annotations

import itertools
import random

import pytest

from core.packs import Pack, PackFile, PackTask, read_pack
from core.packs.clawgym import reward_script
from core.packs.lint import lint
from core.packs.lint.duplicates import similar_pairs
from core.packs.model import ANSWER, REWARD_SH
from tests.packs import examples


def task(check="import json\nprint(json.dumps({}))\n", **fields):
    files = {"reward.sh": reward_script(), "check.py": PackFile(check.encode())}
    values = {"query": "Read input/a.csv.", "input_files": {"input/a.csv": PackFile(b"x")}, "checker": REWARD_SH}
    return PackTask(**{"task_id": "t", **values, "checker_files": files, **fields})


def found(one, **settings):
    return [(finding.check, finding.level) for finding in lint(Pack("p", [one]), **settings)]


def test_sound_tasks_have_no_finding(tmp_path):
    assert found(task()) == []
    assert lint(read_pack(examples.clawgym_folder(tmp_path / "pack"))) == []


@pytest.mark.parametrize(
    ("fault", "check", "level"),
    [
        (task(checker=None, checker_files={}), "no_check", "error"),
        (task(checker=ANSWER, checker_files={}), "no_check", "error"),
        (task(checker_files={"reward.sh": reward_script()}), "missing_file", "error"),
        (task(checker_files={"check.py": PackFile(b"")}), "missing_file", "error"),
        (task(query="Compare input/a.csv with input/b.csv."), "missing_file", "warning"),
        (task("def f(:\n"), "checker_syntax", "error"),
        (task("import nowhere_at_all.x\n"), "checker_import", "error"),
        (task("try:\n    import nowhere_at_all\nexcept ImportError:\n    x = 0\n"), "checker_import", "warning"),
        (task("def g(workspace):\n    return list(workspace.rglob('*.py'))\n"), "checker_in_workspace", "warning"),
        (task("import os\ndef g(ws):\n    return list(os.walk(ws))\n"), "checker_in_workspace", "warning"),
        (task(image="x:1"), "needs_image", "note"),
        (task(checker=ANSWER, checker_files={}, answer="Reykjavik", query="Not reykjavik?"), "answer_leak", "note"),
        (
            task(checker=ANSWER, checker_files={}, answer=1234, input_files={"a": PackFile(b"x=1234;")}),
            "answer_leak",
            "note",
        ),
        (task("# " + "x" * 40, input_files={"input/a.csv": PackFile(b"# " + b"x" * 40)}), "answer_leak", "error"),
    ],
)
def test_each_fault_is_found_alone(fault, check, level):
    assert found(fault) == [(check, level)]


def test_what_is_no_fault():
    assert found(task(query="Read input/a.csv. Then write input/b.csv with the result.")) == []
    assert found(task("import os, json\n")) == []
    assert found(task("def g(ws):\n    return [p for p in ws.rglob('*') if 'reward' not in p.parts]\n")) == []
    assert found(task("def g(ws):\n    return list((ws / 'output').rglob('*'))\n")) == []
    assert found(task("import yaml\n"), available=lambda module: module == "yaml") == []
    assert found(task(checker=ANSWER, checker_files={}, answer="42", query="Is it 42?")) == []


def test_near_duplicates_equal_a_brute_force():
    generator = random.Random(7)
    words = ["sum", "the", "file", "report", "of", "all", "rows", "in"]
    texts = [" ".join(generator.choices(words[:3], k=generator.randint(0, 7))) for _ in range(60)]

    def runs(text):
        split = text.split()
        return {tuple(split[i : i + 3]) for i in range(len(split) - 2)} or {tuple(split)}

    expected = {
        (i, j): len(runs(a) & runs(b)) / len(runs(a) | runs(b))
        for (i, a), (j, b) in itertools.combinations(enumerate(texts), 2)
    }
    for threshold in (0.4, 0.8, 1.0):
        pairs = similar_pairs(texts, threshold)
        assert {(i, j): pytest.approx(value) for i, j, value in pairs} == {
            pair: value for pair, value in expected.items() if value >= threshold
        }
        assert [value for _, _, value in pairs] == sorted((value for _, _, value in pairs), reverse=True)
    assert similar_pairs([]) == []


def test_near_duplicates_are_reported_with_both_ids():
    text = "Read the file of sales and write the sum of every month to output."
    pack = Pack("p", [task(task_id="a", query=text), task(task_id="b", query=text.upper()), task(task_id="c")])
    (finding,) = lint(pack)
    assert (finding.check, list(finding.task_ids), finding.similarity) == ("near_duplicate", ["a", "b"], 1.0)
