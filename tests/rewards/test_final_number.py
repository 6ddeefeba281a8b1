"""The number that an answer ends in."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import InvalidInput
from core.rewards import score

CASES = [
    ("so it is 24.\n#### 72", "72", False, 1.0),
    ("#### 71\nno, wait\n#### 72", "72", False, 1.0),
    ("#### 72\n#### 71", "72", False, 0.0),
    ("#### 1,234", "1234", False, 1.0),
    ("#### 72.0", "72", False, 1.0),
    ("#### -3", "-3", False, 1.0),
    ("the answer is 72", "72", False, 0.0),
    ("the answer is 72", "72", True, 1.0),
    ("the answer is 72.", "72", True, 1.0),
    ("nothing", "72", True, 0.0),
    ("#### 72" + " " * 400, "72", False, 0.0),
]


@pytest.mark.parametrize(("text", "answer", "flexible", "value"), CASES)
def test_the_last_number_counts(text: str, answer: str, flexible: bool, value: float) -> None:
    check = {"verifier": "final_number", "text": text, "answer": answer, "flexible": flexible}
    assert score(Path(), check).value == value


def test_an_answer_in_a_file(tmp_path: Path) -> None:
    check = {"verifier": "final_number", "path": "answer.txt", "answer": 72}
    assert score(tmp_path, check).value == 0.0
    (tmp_path / "answer.txt").write_text("#### 72")
    assert score(tmp_path, check).value == 1.0


def test_no_right_answer_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidInput, match="correct answer is missing"):
        score(Path(), {"verifier": "final_number", "text": "#### 1"})
