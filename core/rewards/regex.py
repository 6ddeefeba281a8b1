"""A verifier for texts that must match a regular expression."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.rewards.base import Score, Unscored, answer_text, required
from core.rewards.run import check_box

TIMEOUT_S = 10.0
FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE, "a": re.ASCII}
VALUES = "found.json"
# In a process of its own: some patterns take exponential time, and a match can't be stopped.
RUNNER = """
import json, re, sys
pattern, flags, whole, text, out = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True", sys.argv[4], sys.argv[5]
with open(text, encoding="utf-8", newline="") as file:
    content = file.read()
compiled = re.compile(pattern, flags)
match = compiled.fullmatch(content) if whole else compiled.search(content)
found = None if match is None else {"at": match.start(), "text": match[0][:200], "groups": match.groupdict()}
with open(out, "w", encoding="utf-8") as file:
    json.dump(found, file)
"""


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """1.0 if ``spec["pattern"]`` matches the answer, else 0.0; the other way round with ``spec["absent"]``.

    The answer is ``spec["text"]``, the file ``spec["path"]``, or the agent's final message. The pattern is Python's
    ``re``, searched anywhere, or with ``spec["whole"]`` matched to all of the text. ``spec["flags"]`` are letters of
    ``FLAGS``. A match that takes longer than 10 s (``spec["timeout_s"]``) is a failure of the verifier.
    """
    pattern = required(spec, "pattern", str, "a regular expression of Python's re")
    letters = str(spec.get("flags", ""))
    if set(letters) - set(FLAGS):
        raise InvalidInput(f"no flags {letters!r}", field="check.flags", hint=f"letters of {''.join(FLAGS)}")
    flags = 0
    for letter in letters:
        flags |= FLAGS[letter]
    try:
        re.compile(pattern, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise InvalidInput(
            f"{pattern!r} is no pattern: {error}", field="check.pattern", hint="see Python's re"
        ) from None
    text = answer_text(workspace, spec)
    if text is None:
        return Score(0.0, {"pattern": pattern, "problem": "no such text file"})
    with check_box(Path("/nonexistent"), spec, timeout_s=TIMEOUT_S) as box:
        made = box.lend_files({"run.py": RUNNER, "text": text})
        settings = [pattern, str(int(flags)), str(bool(spec.get("whole", False)))]
        files = [str(made / "text"), str(box.home / VALUES)]
        box.run(["python3", "-I", "-S", str(made / "run.py"), *settings, *files])
        content = box.result(VALUES)
    if content is None:
        raise Unscored("crashed", "the match gave no result")
    match = json.loads(content)
    right = (match is None) if spec.get("absent", False) else (match is not None)
    return Score(float(right), {"pattern": pattern, "match": match})
