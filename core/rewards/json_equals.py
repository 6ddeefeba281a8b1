"""A verifier for a JSON file with the expected value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from core.rewards.base import Score, fraction, read_answer


def leaves(value: Any, path: str = "$") -> Iterator[tuple[str, Any]]:
    """``(path, scalar)`` for every leaf; an empty container is a leaf.

    ``{"a": [1, {"b": 2}]}`` gives ``("$.a[0]", 1), ("$.a[1].b", 2)``.
    """
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


def verify(workspace: Path, spec: Mapping[str, Any]) -> Score:
    """1.0 if ``spec["path"]`` has the value ``spec["expected"]``, else 0.0.

    If ``spec["partial"]`` is true, a wrong file scores its correct leaves divided by all leaves of both. Do not use it
    if the unchanged input has leaves in common with the answer. Numbers are compared by value (1 equals 1.0); true and
    1 are different. The order of keys does not matter.
    """
    text = read_answer(workspace, spec["path"])
    if text is None:
        return Score(0.0, {"path": spec["path"], "problem": "no such text file"})
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        return Score(0.0, {"path": spec["path"], "problem": f"not JSON: {error}"})
    want, have = dict(leaves(spec["expected"])), dict(leaves(document))
    wrong = sorted(
        path
        for path in want.keys() | have.keys()
        if path not in want or path not in have or not _same(want[path], have[path])
    )
    n_all = len(want.keys() | have.keys())
    value = fraction(n_all - len(wrong), n_all) if spec.get("partial", False) else float(not wrong)
    return Score(value, {"path": spec["path"], "wrong": wrong[:20]})


def _same(left: Any, right: Any) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)
