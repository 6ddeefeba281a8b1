"""Verifiers judge what an agent left behind; every failure of the agent is a 0 with a reason."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.rewards import REGISTRY, SERVED, score
from core.rewards.csv_sum import column_sum
from core.rewards.json_equals import leaves

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def write(root: Path, name: str, text: str) -> Path:
    (root / name).write_text(text, encoding="utf-8")
    return root


def test_unknown_verifier_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as caught:
        score(tmp_path, {"verifier": "telepathy"})
    assert caught.value.field == "check.verifier"
    assert "json_equals" in (caught.value.hint or "")


def test_a_verifier_that_breaks_leaves_the_attempt_unscored(tmp_path: Path) -> None:
    result = score(tmp_path, {"verifier": "json_equals"})  # no path given
    assert result.value is None
    assert "KeyError" in (result.error or "")


@pytest.mark.parametrize(
    "check",
    [
        {"verifier": "file_contains", "path": "out.txt", "contains": ["a"]},
        {"verifier": "json_equals", "path": "out.txt", "expected": {"a": 1}},
        {"verifier": "lines_equal", "path": "out.txt", "expected": ["a"]},
        {"verifier": "csv_sum", "path": "out.txt", "csv_text": "n\n1\n", "column": "n"},
    ],
)
def test_missing_binary_or_outside_answers_score_zero(tmp_path: Path, check: dict) -> None:
    inside = tmp_path / "workspace"
    inside.mkdir()
    assert score(inside, check).value == 0.0
    (inside / "out.txt").write_bytes(b"\xff\xfe\x00")
    assert score(inside, check).value == 0.0
    write(tmp_path, "secret.txt", "a")
    assert score(inside, {**check, "path": "../secret.txt"}).value == 0.0
    (inside / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert score(inside, {**check, "path": "link.txt"}).value == 0.0


def test_file_contains_counts_demands(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "one two")
    check = {"verifier": "file_contains", "path": "a.txt", "contains": ["one", "three"], "lacks": ["two", "four"]}
    result = score(tmp_path, check)
    assert result.value == 0.5
    assert result.details["missing"] == ["three"]
    assert result.details["unwanted"] == ["two"]


def test_an_empty_file_does_not_pass_for_lacking_things(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "")
    check = {"verifier": "file_contains", "path": "a.txt", "contains": ["one"], "lacks": ["two", "four"]}
    assert score(tmp_path, check).value == 0.0


@given(value=JSON_VALUES)
def test_json_equals_accepts_what_json_writes(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    root = tmp_path_factory.mktemp("json")
    write(root, "a.json", json.dumps(value, indent=3, sort_keys=True))
    for partial in (False, True):
        check = {"verifier": "json_equals", "path": "a.json", "expected": value, "partial": partial}
        assert score(root, check).value == 1.0


@given(left=JSON_VALUES, right=JSON_VALUES)
def test_json_equals_agrees_with_equality(
    tmp_path_factory: pytest.TempPathFactory, left: object, right: object
) -> None:
    root = tmp_path_factory.mktemp("json")
    write(root, "a.json", json.dumps(left))
    value = score(root, {"verifier": "json_equals", "path": "a.json", "expected": right}).value
    # Canonical text tells true from 1; numbers are put into one form first.
    assert (value == 1.0) == (canonical(left) == canonical(right))


def canonical(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return "[" + ",".join(canonical(inner) for inner in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{canonical(value[key])}" for key in sorted(value)) + "}"
    return json.dumps(value)


def test_json_partial_credit_is_the_share_of_right_leaves(tmp_path: Path) -> None:
    write(tmp_path, "a.json", '{"x": 1, "y": [1, 2], "extra": true}')
    check = {"verifier": "json_equals", "path": "a.json", "expected": {"x": 1, "y": [1, 3]}}
    assert score(tmp_path, check).value == 0.0
    result = score(tmp_path, {**check, "partial": True})
    assert result.value == pytest.approx(2 / 4)
    assert result.details["wrong"] == ["$.extra", "$.y[1]"]


def test_leaves_worked_example() -> None:
    assert list(leaves({"a": [1, {"b": 2}], "c": {}})) == [("$.a[0]", 1), ("$.a[1].b", 2), ("$.c", {})]


def test_lines_in_wrong_order_score_half(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "b\n\n  a \n")
    check = {"verifier": "lines_equal", "path": "a.txt", "expected": ["a", "b"]}
    assert score(tmp_path, check).value == 0.5
    write(tmp_path, "a.txt", "a\nb\n")
    assert score(tmp_path, check).value == 1.0
    write(tmp_path, "a.txt", "a\na\na\n")
    assert score(tmp_path, check).value == pytest.approx(0.5 / 3)


@given(
    cents=st.lists(st.integers(-(10**7), 10**7), min_size=1, max_size=30),
    picks=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_csv_sum_is_exact_in_cents(
    tmp_path_factory: pytest.TempPathFactory, cents: list[int], picks: list[bool]
) -> None:
    rows = [("yes" if pick else "no", Decimal(cent) / 100) for cent, pick in zip(cents, picks, strict=False)]
    text = io.StringIO()
    csv.writer(text).writerows([("use", "amount"), *rows])
    expected = Decimal(sum(c for c, pick in zip(cents, picks, strict=False) if pick)) / 100
    assert column_sum(text.getvalue(), "amount", {"use": "yes"}) == expected
    root = write(tmp_path_factory.mktemp("csv"), "total.txt", f"{expected:.2f}\n")
    check = {
        "verifier": "csv_sum",
        "csv_text": text.getvalue(),
        "column": "amount",
        "where": {"use": "yes"},
        "path": "total.txt",
    }
    assert score(root, check).value == 1.0
    write(root, "total.txt", f"{expected + Decimal('0.01'):.2f}")
    assert score(root, check).value == 0.0
    write(root, "total.txt", f"{expected} or {expected}")
    assert score(root, check).value == 0.0


def test_every_is_the_mean_and_stays_unknown_when_a_part_is(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "one")
    good = {"verifier": "file_contains", "path": "a.txt", "contains": ["one"]}
    bad = {"verifier": "file_contains", "path": "a.txt", "contains": ["two"]}
    assert score(tmp_path, {"verifier": "every", "checks": [good, bad]}).value == 0.5
    result = score(tmp_path, {"verifier": "every", "checks": [good, {"verifier": "json_equals"}]})
    assert result.value is None
    assert result.error


def test_registry_names_match_files() -> None:
    folder = Path(__file__).parents[2] / "core" / "rewards"
    shared = {"__init__", "base", "judging", "policy", "run", "services"}
    assert {*REGISTRY, *SERVED} == {path.stem for path in folder.glob("*.py")} - shared
