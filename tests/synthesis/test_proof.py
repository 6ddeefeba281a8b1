"""A checker counts only if it holds: each way in which it can be wrong is found, and named."""

from __future__ import annotations

import pytest

from core.packs import PackFile
from core.synthesis.draft import Draft, candidate
from core.synthesis.proof import NotProven, SolutionFailed, prove, solve
from core.synthesis.proof.mutants import CONSTANT, KINDS, MISSING, mutants
from core.synthesis.proof.rules import broken_rules, without_main
from tests.synthesis.tasks import ALWAYS, CHECK, CRASHES, EXISTS, NEVER, ROWS, SOLVE

INPUTS = {"data/sales.csv": PackFile(ROWS.encode())}
DRAFT = Draft("Write out/total.json from data/sales.csv.", "total 42", "tables", INPUTS, 3.0, {})


@pytest.fixture(scope="module")
def solution():
    return solve(INPUTS, SOLVE, isolation="process", time_s=60)


def proof_of(source, solution, **settings):
    clean = without_main(source)
    return prove(candidate("t", DRAFT, clean), clean, solution, **{"n_runs": 1, "n_mutants": 3, **settings})


def test_a_right_checker_holds(solution):
    proof = proof_of(CHECK, solution, n_runs=3, n_mutants=8)
    assert solution.changed == ["out/total.json"]
    assert (proof.solution_score, proof.mutation_score, proof.flakiness, proof.n_runs) == (1.0, 1.0, 0.0, 3)
    assert {one.kind for one in proof.mutations} == set(KINDS)
    assert proof.values == {"total": 1.0}


@pytest.mark.parametrize(
    ("source", "stage", "reason"),
    [
        (ALWAYS, "untouched", "scores 1.0"),
        (CRASHES, "untouched", "gives no score"),
        (NEVER, "solution", "scores 0"),
        (EXISTS, "mutants", "hard_coded"),
        ("def grade(:\n", "compile", "not valid"),
        ("def check(w):\n    return 1\n", "rules", "no function grade"),
    ],
)
def test_a_wrong_checker_is_found(solution, source, stage, reason):
    with pytest.raises(NotProven) as caught:
        if stage == "compile":
            prove(candidate("t", DRAFT, source), source, solution)
        proof_of(source, solution)
    assert caught.value.stage == stage
    assert reason in caught.value.reason


def test_a_score_that_changes_is_found(solution):
    """The order of a set of texts depends on the process: chance that no import shows."""
    source = CHECK.replace("1.0 if found", "hash(str(found)) % 1000 / 1000 if found")
    with pytest.raises(NotProven) as caught:
        proof_of(source, solution, n_runs=4)
    assert caught.value.stage in {"flaky", "own_folder"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import time", "clock: time"),
        ("from datetime import date; date.today()", "clock: today"),
        ("import os; os.stat('x').st_mtime", "clock: st_mtime"),
        ("import random", "chance"),
        ("from urllib.request import urlopen", "network: urllib"),
        ("import socket", "network: socket"),
        ("import numpy", "not in the standard library"),
        ("open(__file__)", "own folder"),
        ("import sys; sys.argv[0]", "own folder"),
        ("import inspect", "own source"),
        ("exec('1')", "can't be read"),
        ("import os; os.getcwd()", "current folder"),
    ],
)
def test_what_a_checker_must_not_read(line, reason):
    body = "".join(f"    {one.strip()}\n" for one in line.split(";"))
    assert any(reason in one for one in broken_rules(f"def grade(a, b):\n{body}    return {{}}\n"))


def test_what_it_may_read():
    allowed = "from urllib.parse import quote\nimport datetime, subprocess, re\n"
    assert broken_rules(f"{allowed}def grade(transcript, workspace_path):\n    return {{}}\n") == []
    assert broken_rules(without_main(CHECK)) == []


def test_mutants_differ_in_one_way():
    before = {"a.txt": PackFile(b"x"), "b.csv": PackFile(b"n\n1\n")}
    after = {"a.txt": PackFile(b"The answer is long."), "b.csv": PackFile(b"n\n2\n30\n"), "c": PackFile(b"5")}
    made = mutants(before, after, ["a.txt", "b.csv", "c"], 20)
    assert made[0].kind == CONSTANT
    assert made[0].files["b.csv"].content == b"n\n0\n0\n"
    gone = [one for one in made if one.kind == MISSING]
    assert [one.files.get(one.path) for one in gone] == [before["a.txt"], before["b.csv"], None]
    for one in made[1:]:
        assert [path for path in after if one.files.get(path) != after[path]] == [one.path]
    assert len(mutants(before, after, ["a.txt", "b.csv", "c"], 4)) == 4


@pytest.mark.parametrize(
    ("program", "reason"),
    [("raise SystemExit('no idea')", "code 1: no idea"), ("pass", "changed no file")],
)
def test_a_solution_that_fails(program, reason):
    with pytest.raises(SolutionFailed, match=reason):
        solve(INPUTS, program, isolation="process", time_s=60)
