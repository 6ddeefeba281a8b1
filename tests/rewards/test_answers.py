"""Final answers, patterns and JSON schemas, beside fractions, ``re`` and jsonschema's own validator."""

from __future__ import annotations

import json
import re
import time
from fractions import Fraction
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.rewards import score
from core.rewards.final_answer import items_of, last_number, number_of

NOWHERE = Path("/nonexistent")


def answered(text, answer, **spec):
    return score(NOWHERE, {"verifier": "final_answer", "payload": {"final_message": text}, "answer": answer, **spec})


@pytest.mark.parametrize(
    ("text", "answer", "spec", "value"),
    [
        ("Paris", "paris", {}, 1.0),
        ("I thought about it.\n**Paris.**", "Paris", {}, 1.0),
        ("Answer: Paris\nHope this helps!", "Paris", {}, 1.0),
        ('Final answer is: "New  York".', "new york", {}, 1.0),
        ("It is \\boxed{\\frac{1}{2}} then.", "\\frac{1}{2}", {}, 1.0),
        ("Paris or London", "Paris", {}, 0.0),
        ("no\n#### 72", "72", {}, 1.0),
        ("It is 72 apples", 72, {}, 1.0),
        ("So 1,234.50 dollars", "1234.5", {}, 1.0),
        ("3/4", 0.75, {}, 1.0),
        ("0.3333", "1/3", {}, 0.0),
        ("0.3333", "1/3", {"tolerance": 1e-3}, 1.0),
        ("25 %", "0.25", {}, 1.0),
        ("-3", "3", {}, 0.0),
        ("−3", "-3", {}, 1.0),
        ("b, a and c", ["a", "b"], {}, 0.0),
        ("- b\n- a", ["a", "b"], {"mode": "set"}, 0.0),
        ("Answer: b; A", ["a", "b"], {}, 1.0),
        ("Answer: [2, 1.0]", [1, 2], {}, 1.0),
        ("Answer: 5, 3 and 2", [2, 3, 5], {}, 1.0),
        ("Answer: b & a", ["a", "b"], {}, 1.0),
        ("Answer: oil, salt and pepper", ["salt and pepper", "oil"], {}, 1.0),
        ("Answer: salt and pepper", ["salt"], {}, 0.0),
        ("Answer: 5, 3 and 4", [2, 3, 5], {"partial": True}, 2 / 4),
        ("Answer: a, c", ["a", "b"], {"partial": True}, 1 / 3),
        ("London", ["Paris", "London"], {"mode": "exact"}, 1.0),
        ("", "Paris", {}, 0.0),
    ],
)
def test_final_answers(text, answer, spec, value):
    assert answered(text, answer, **spec).value == pytest.approx(value)


def test_faults_of_the_specification_are_named():
    for spec, field in (
        ({"answer": None}, "check.answer"),
        ({"answer": "a", "mode": "close"}, "check.mode"),
        ({"answer": "a", "mode": "numeric"}, "check.answer"),
        ({"answer": 1, "tolerance": -1}, "check.tolerance"),
    ):
        with pytest.raises(InvalidInput) as caught:
            answered("1", **spec)
        assert caught.value.field == field
    assert score(NOWHERE, {"verifier": "final_answer", "answer": "x"}).outcome == "missing"


@given(st.fractions(), st.text("abc ,:\n", max_size=20))
def test_numbers_are_read_exactly(number, around):
    text = f"{around} {number.numerator}/{number.denominator} "
    assert last_number(text) == number == number_of(f"{number.numerator}/{number.denominator}")
    assert last_number(f"{around} {number.numerator:,} ") == Fraction(number.numerator)


@given(st.sets(st.integers(-99, 99), max_size=6))
def test_sets_have_no_order(numbers):
    assert items_of("[" + ", ".join(map(str, sorted(numbers, reverse=True))) + "]") == set(map(str, numbers))


@pytest.mark.parametrize("text", ["1," * 50_000, "9" * 50_000, "answer" + " " * 50_000, "1.1" * 30_000, "1e999999999"])
def test_hostile_answers_are_quick(text):
    begin = time.process_time()
    for answer in (7, "seven", ["a"]):
        assert answered(text, answer).value == 0.0
    assert time.process_time() - begin < 5


def test_patterns_equal_re(tmp_path):
    (tmp_path / "log.txt").write_text("One\ntwo 22\n")
    for pattern, flags, whole in (
        ("two \\d+", "", False),
        ("^TWO", "im", False),
        (".*", "s", True),
        ("three", "", False),
    ):
        value = sum(getattr(re, letter.upper()) for letter in flags)
        match = (re.fullmatch if whole else re.search)(pattern, "One\ntwo 22\n", value)
        check = {"verifier": "regex", "path": "log.txt", "pattern": pattern, "flags": flags, "whole": whole}
        assert score(tmp_path, check).value == float(match is not None)
        assert score(tmp_path, {**check, "absent": True}).value == float(match is None)
    assert score(tmp_path, {"verifier": "regex", "path": "no.txt", "pattern": "a"}).value == 0.0
    slow = {"verifier": "regex", "text": "a" * 60 + "!", "pattern": "(a|aa)+$", "timeout_s": 1}
    assert score(tmp_path, slow).outcome == "timed_out"
    with pytest.raises(InvalidInput, match="no pattern"):
        score(tmp_path, {"verifier": "regex", "text": "a", "pattern": "("})


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0}, "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}}},
    "required": ["n"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string", "pattern": "^[a-z]+$"}},
}
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text("ab1", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["n", "tags", "x"]), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(DOCUMENTS)
def test_schemas_equal_jsonschema(document):
    errors = list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(document))
    result = score(NOWHERE, {"verifier": "json_schema", "schema": SCHEMA, "text": json.dumps(document)})
    assert result.value == float(not errors)
    assert result.details["n_errors"] == len(errors)
    assert {one["path"] for one in result.details["errors"]} == {error.json_path for error in errors}


def test_schema_faults():
    check = {"verifier": "json_schema", "schema": SCHEMA}
    fence = 'Here it is:\n```json\n{"n": 1}\n```\n'
    assert score(NOWHERE, {**check, "payload": {"final_message": fence}}).value == 1.0
    assert score(NOWHERE, {**check, "text": "{"}).value == 0.0
    assert score(NOWHERE, {**check, "text": "NaN"}).value == 0.0
    with pytest.raises(InvalidInput, match="not valid"):
        score(NOWHERE, {**check, "schema": {"type": "nothing"}, "text": "1"})
    with pytest.raises(InvalidInput, match="another document"):
        score(NOWHERE, {**check, "schema": {"$ref": "http://127.0.0.1:9/x.json"}, "text": "1"})
