"""A verifier for the final answer of an agent: as text, as a number, or as a set."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.rewards.base import Score, answer_text

MODES = {
    "exact": "the same text, without regard to case, white space, surrounding quotes and a final full stop",
    "numeric": "the last number is equal, within the tolerance",
    "set": "the same items, in any order; the score is the Jaccard index with partial",
    "auto": "numeric for a number, set for a list, else exact",
}
TAIL_CHARS = 20_000
"""Number of characters at the end that are searched."""
MAX_NUMBER = 400
"""Longest number, characters."""
_MARKER = re.compile(r"\\boxed\s?\{|final answer\s?(?:is)?\s?[:：]|answer\s?:|####", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)?(?:\.\d+|(?<=\d)\.?)(?:[eE][-+]?\d+)?(?:/\d+)?\s?%?(?!\w)"
)
_SEPARATOR = re.compile(r"[,;\n]")


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """1.0 if the final answer equals ``spec["answer"]``, else 0.0.

    The answer is read from ``spec["text"]``, the file ``spec["path"]``, or the agent's final message. What stands after
    the last ``####``, ``\\boxed{``, ``Answer:`` or ``Final answer:`` counts; without these, the last line, or for a
    number the last number. ``spec["mode"]`` is a key of ``MODES``, by default ``auto``. ``spec["tolerance"]`` is the
    largest relative difference of numbers, by default 0: exact, as fractions. Where ``answer`` is a list and the mode
    is not ``set``, any of its items is right.
    """
    answer, mode = spec.get("answer"), spec.get("mode", "auto")
    if answer is None or answer == []:
        raise InvalidInput("the correct answer is missing", field="check.answer", hint="a text, a number or a list")
    if mode not in MODES:
        raise InvalidInput(f"no mode {mode!r}", field="check.mode", hint=", ".join(MODES))
    if mode == "auto":
        mode = "set" if isinstance(answer, list) else "exact" if number_of(str(answer)) is None else "numeric"
    text = answer_text(workspace, spec)
    details: dict[str, Any] = {"mode": mode, "expected": answer}
    if text is None:
        return Score(0.0, {**details, "problem": "no such text file"})
    marked, part = final_part(text)
    if mode == "set":
        return _score_set(answer, part, bool(spec.get("partial", False)), details)
    answers = answer if isinstance(answer, list) else [answer]
    compare: Callable[[Any], bool]
    if mode == "numeric":
        tolerance = _tolerance(spec)
        number = last_number(part) if marked else last_number(text)
        details["found"] = None if number is None else str(number)
        compare = lambda one: number is not None and same_number(number, _expected(one), tolerance)  # noqa: E731
    else:
        details["found"] = part
        compare = lambda one: normal(part) == normal(str(one))  # noqa: E731
    return Score(float(any(map(compare, answers))), details)


def final_part(text: str) -> tuple[bool, str]:
    """Whether the text marks its answer, and the answer: what follows the last marker on its line, or the last line."""
    text = text[-TAIL_CHARS:]
    markers = list(_MARKER.finditer(text))
    if markers:
        rest = text[markers[-1].end() :]
        if markers[-1][0].startswith("\\boxed"):
            return True, _braced(rest)
        first = rest.lstrip().splitlines()
        return True, first[0].strip() if first else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return False, lines[-1] if lines else ""


def _braced(text: str) -> str:
    """The text up to the brace that closes the one before it."""
    depth = 1
    for at, char in enumerate(text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth == 0:
            return text[:at].strip()
    return text.strip()


def normal(text: str) -> str:
    """A text in the form in which answers are compared."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.strip("*_`\"'“”‘’ ").rstrip(".").strip("*_`\"'“”‘’ ")


def number_of(text: str) -> Fraction | None:
    """The number that a text is, as an exact fraction: ``1,234.50``, ``3/4``, ``25 %``, ``1e-3``; else None."""
    plain = text.strip().strip("$€£*`").strip()
    match = _NUMBER.fullmatch(plain) if len(plain) <= MAX_NUMBER else None
    return None if match is None else _fraction(match[0])


def last_number(text: str) -> Fraction | None:
    """The last number in a text, or None."""
    numbers = [one for match in _NUMBER.finditer(text[-TAIL_CHARS:]) if (one := _fraction(match[0])) is not None]
    return numbers[-1] if numbers else None


def _fraction(text: str) -> Fraction | None:
    if len(text) > MAX_NUMBER:
        return None
    plain = text.replace(",", "").replace("−", "-").strip()
    percent = plain.endswith("%")
    number, slash, below = plain.rstrip("% ").partition("/")
    exponent = re.search(r"[eE]([-+]?\d+)$", number)
    if exponent is not None and abs(int(exponent[1][:6])) > 400:
        return None
    try:
        value = Fraction(number.rstrip(".")) / (Fraction(below) if slash else 1)
    except (ValueError, ZeroDivisionError):
        return None
    return value / 100 if percent else value


def same_number(found: Fraction, expected: Fraction, tolerance: Fraction) -> bool:
    """Whether two numbers differ by at most ``tolerance`` times the expected one."""
    return abs(found - expected) <= tolerance * abs(expected)


def _expected(answer: Any) -> Fraction:
    number = None if isinstance(answer, bool) else number_of(str(answer))
    if number is None:
        raise InvalidInput(f"the correct answer {answer!r} is no number", field="check.answer", hint="or mode exact")
    return number


def _tolerance(spec: Mapping[str, Any]) -> Fraction:
    value = spec.get("tolerance", 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise InvalidInput(f"the tolerance is {value!r}", field="check.tolerance", hint="a number, 0 or more")
    return Fraction(value)


def items_of(text: str) -> set[str]:
    """The items of a list in a text: separated by commas, semicolons or line ends, without brackets and bullets."""
    parts = _SEPARATOR.split(text.strip().strip("[]{}()"))
    return {one for part in parts if (one := _item(part))}


def _item(text: str) -> str:
    number = number_of(text)
    return normal(re.sub(r"^\s*(?:[-*•]|and\b)\s+", "", text)) if number is None else str(number)


def _parts(item: str, expected: set[str]) -> set[str]:
    """The last two items of ``5, 3 and 2``; an item that has ``and`` in itself is kept."""
    parts = {_item(one) for one in re.split(r"\s+(?:and|&)\s+", item)}
    return parts if item not in expected and parts & expected else {item}


def _score_set(answer: Any, part: str, partial: bool, details: dict[str, Any]) -> Score:
    wanted = answer if isinstance(answer, Sequence) and not isinstance(answer, str) else items_of(str(answer))
    expected = {_item(str(one)) for one in wanted}
    found = {item for one in items_of(part) for item in _parts(one, expected)}
    details |= {"missing": sorted(expected - found)[:20], "extra": sorted(found - expected)[:20]}
    if partial:
        return Score(len(expected & found) / len(expected | found), details)
    return Score(float(expected == found), details)
