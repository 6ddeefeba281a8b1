"""Words of the pages: wordings that puzzled new users are not in any label, help text or message."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUZZLING = re.compile(
    r"Tokens, once|They part:|\brefer / |parts here|What came last first|Touches groups|Counted from"
    r"|Of too many rollouts|first that there is|Who has spoken|Hear only|Apart by|Given back"
    r"|is visible to query \w iff|\b1 rows\b",
    re.IGNORECASE,
)


def texts(path: Path) -> Iterator[str]:
    """Strings of a Python file that are no docstrings; lines of a script that are no comments."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".js":
        yield from (line for line in source.splitlines() if not line.lstrip().startswith("//"))
        return
    tree = ast.parse(source)
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


def test_old_wordings_are_recognised():
    assert all(PUZZLING.search(text) for text in ("Tokens, once", "They part: at step 2", "Hear only", "Given back"))


@pytest.mark.parametrize("folder", ["pages", "studio"])
def test_no_page_uses_a_puzzling_wording(folder):
    files = [path for end in ("py", "js") for path in (ROOT / folder).rglob(f"*.{end}")]
    assert files
    found = [(path.name, text) for path in files for text in texts(path) if PUZZLING.search(text)]
    assert not found
