"""A verifier by which a language model judges the workspace by rules or by a rubric in text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.rewards.base import Score, Unscored
from core.rewards.judging import Bench, content_text, fenced, level_of, transcript_text
from core.rewards.services import Services
from core.sandbox.readback import listing, read_bytes

MAX_FILES = 20
MAX_FILE_BYTES = 1 << 20
RULE = """{query}

{file}

## Criterion
{name}

Levels:
{levels}

Choose the level that describes the file. Answer with {{"reason": "one or two sentences", "level": number}}."""
# After PinchBench's lib_grading.py.
TEXT = """{query}

{work}

## Rubric
{rubric}

Score each criterion from 0.0 to 1.0, and give the total by the weights of the rubric, or their mean if it has none.
Answer with {{"scores": {{"criterion": number}}, "total": number, "notes": "brief justification"}}."""


def verify(workspace: Path, spec: Mapping[str, Any], services: Services) -> Score:
    """Mean of the judge's levels over ``spec["rules"]``, or its total by the text ``spec["rubric"]``; in [0, 1].

    A rule is ``{name, file_path, scores: {level: description}}`` with levels in [0, 1]. Rules are not weighted; one
    whose file is missing scores 0 without a call, as in ClawGym. ``spec["query"]`` is the task's text. Each rule is
    judged ``spec["votes"]`` times (1), and the mean of the votes counts.

    ``details`` has ``rules`` (``name, file_path, score, votes, reasons``) or ``criteria`` and ``notes``, and ``judge``:
    models, calls, tokens and cost.
    """
    bench = Bench(spec, services)
    query = fenced("Task", str(spec.get("query") or "not known"))
    if spec.get("rules"):
        rules = [_judged(workspace, rule, query, bench) for rule in spec["rules"]]
        value = math.fsum(rule["score"] for rule in rules) / len(rules)
        return Score(value, {"rules": rules, "judge": bench.cost()})
    if not isinstance(spec.get("rubric"), str) or not spec["rubric"].strip():
        raise InvalidInput("there is neither a rule nor a rubric", field="check.rules", hint="rules, or rubric: text")
    return _by_text(workspace, spec, query, bench)


def _judged(workspace: Path, rule: Mapping[str, Any], query: str, bench: Bench) -> dict[str, Any]:
    """One rule with its score, votes and reasons."""
    known = {"name": rule["name"], "file_path": rule["file_path"]}
    text = _file_text(workspace, str(rule["file_path"]))
    if text is None:
        return {**known, "score": 0.0, "votes": [], "reasons": ["the file is missing"]}
    descriptions = {float(level): text_ for level, text_ in rule["scores"].items()}
    levels = sorted(descriptions)
    question = RULE.format(
        query=query,
        file=fenced(f"File {rule['file_path']}", text),
        name=rule["name"],
        levels="\n".join(f"- {level:g}: {descriptions[level]}" for level in levels),
    )

    def read(answer: Mapping[str, Any]) -> tuple[float, str] | None:
        level = level_of(answer.get("level"), levels)
        return None if level is None else (level, str(answer.get("reason") or ""))

    votes = bench.votes(question, read)
    score = math.fsum(level for level, _ in votes) / len(votes)
    return {**known, "score": score, "votes": [level for level, _ in votes], "reasons": [one for _, one in votes]}


def _by_text(workspace: Path, spec: Mapping[str, Any], query: str, bench: Bench) -> Score:
    payload = spec.get("payload") or {}
    expected = spec.get("expected_behavior")
    parts = [] if not expected else [fenced("Expected behavior", str(expected))]
    if payload.get("transcript"):
        parts.append(fenced("Transcript of the agent", transcript_text(payload["transcript"])))
    elif payload.get("final_message"):
        parts.append(fenced("Final message of the agent", content_text(payload["final_message"])))
    parts += [fenced(f"File {path}", text) for path, text in _texts(workspace)]
    if not parts:
        raise Unscored("missing", "there is neither a transcript nor a text file to judge")
    question = TEXT.format(query=query, work="\n\n".join(parts), rubric=spec["rubric"])
    votes = bench.votes(question, _read_total)
    value = math.fsum(total for total, _, _ in votes) / len(votes)
    criteria: dict[str, list[float]] = {}
    for _, scores, _ in votes:
        for name, number in scores.items():
            criteria.setdefault(name, []).append(number)
    return Score(
        value,
        {
            "criteria": {name: math.fsum(numbers) / len(numbers) for name, numbers in criteria.items()},
            "votes": [total for total, _, _ in votes],
            "notes": [notes for _, _, notes in votes],
            "judge": bench.cost(),
        },
    )


def _read_total(answer: Mapping[str, Any]) -> tuple[float, dict[str, float], str] | None:
    """Total, criteria and notes of an answer; the total is the mean of the criteria where it is not given."""
    scores = answer.get("scores")
    numbers = {
        str(name): number
        for name, one in (scores.items() if isinstance(scores, Mapping) else ())
        if (number := _unit(one.get("score") if isinstance(one, Mapping) else one)) is not None
    }
    total = _unit(answer.get("total"))
    if total is None and numbers:
        total = math.fsum(numbers.values()) / len(numbers)
    return None if total is None else (total, numbers, str(answer.get("notes") or ""))


def _unit(value: Any) -> float | None:
    """A number in [0, 1], or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return None
    return float(value)


def _file_text(workspace: Path, path: str) -> str | None:
    """Text of a file; None if it is missing.

    Raises:
        Unscored: it is not text, or too large.
    """
    try:
        content = read_bytes(workspace, path, max_bytes=MAX_FILE_BYTES + 1)
    except OSError:
        return None
    if len(content) > MAX_FILE_BYTES:
        raise Unscored("refused", f"{path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unscored("refused", f"{path} is not text, and a judge reads text only") from None


def _texts(workspace: Path) -> list[tuple[str, str]]:
    """Path and text of the first 20 text files of the workspace."""
    texts: list[tuple[str, str]] = []
    for one in listing(workspace).files:
        if one.n_bytes > MAX_FILE_BYTES or len(texts) == MAX_FILES:
            continue
        try:
            texts.append((one.path, read_bytes(workspace, one.path).decode("utf-8-sig")))
        except (OSError, UnicodeDecodeError):
            continue
    return texts
