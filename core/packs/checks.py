"""The check of a task as a specification for ``core.rewards.score``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.packs.model import ANSWER, GRADE, HARBOR, REWARD_SH, PackTask
from core.packs.tree import write_tree

FOLDERS = {REWARD_SH: "reward", GRADE: "grade", HARBOR: "tests"}
GSM8K = "gsm8k"


def check_of(task: PackTask, folder: Path) -> dict[str, Any]:
    """Write the task's checker files into ``folder``, and return the specification of its check.

    ``folder`` must be outside the workspace, and stay until the check has run. Add ``payload`` (``final_message``,
    ``transcript``, ``metadata``) to the specification before scoring, where they are known; expected answers are
    compared with the final message.

    A task without a check by code gives the specification of its rubric; a task without both gives ``human``. Tasks
    with both have ``rubric_of`` beside it; ``task.weights`` says how they are combined.
    """
    if task.checker in FOLDERS:
        place = folder / FOLDERS[task.checker]
        write_tree(place, task.checker_files)
        return _with_files(task, place)
    if task.checker == ANSWER:
        return _answer(task)
    return rubric_of(task) or {"verifier": "human", "question": task.query}


def _with_files(task: PackTask, place: Path) -> dict[str, Any]:
    if task.checker == REWARD_SH:
        return {"verifier": "reward_sh", "folder": str(place), "placement": "workspace"}
    if task.checker == GRADE:
        return {"verifier": "grade", "program": str(place / "grade.py")}
    verifier, environment = _table(task.extra, "verifier"), _table(task.extra, "environment")
    spec: dict[str, Any] = {"verifier": "harbor", "folder": str(place), "image": task.image}
    if isinstance(verifier.get("timeout_sec"), int | float):
        spec["timeout_s"] = float(verifier["timeout_sec"])
    if isinstance(verifier.get("env"), Mapping):
        spec["env"] = dict(verifier["env"])
    workdir = environment.get("workdir") or _workdir(task)
    return spec if workdir is None else {**spec, "workdir": workdir}


def _workdir(task: PackTask) -> str | None:
    """The last ``WORKDIR`` of the Dockerfile."""
    dockerfile = task.environment_files.get("Dockerfile")
    lines = (dockerfile.text or "").splitlines() if dockerfile is not None else []
    named = [words[1] for line in lines if len(words := line.split()) == 2 and words[0].upper() == "WORKDIR"]
    return named[-1] if named and named[-1].startswith("/") else None


def _answer(task: PackTask) -> dict[str, Any]:
    """Rows of GSM8K have the strict check of verl's ``gsm8k.compute_score``; others any form of the final answer."""
    if GSM8K in str(task.extra.get("data_source", "")):
        return {"verifier": "final_number", "answer": task.answer}
    if isinstance(task.answer, Mapping) and "target" in task.answer:  # Search-R1: any of these
        return {"verifier": "final_answer", "answer": task.answer["target"], "mode": "exact"}
    return {"verifier": "final_answer", "answer": _plain(task.answer)}


def _plain(answer: Any) -> Any:
    """The answer; of a worked solution that ends with ``#### 72``, its end."""
    if isinstance(answer, str) and "####" in answer:
        return answer.rpartition("####")[2].strip()
    return answer


def rubric_of(task: PackTask) -> dict[str, Any] | None:
    """The specification of the task's rubric for a judge, or None if it has none."""
    if task.rules:
        return {"verifier": "rubric", "rules": [dict(rule) for rule in task.rules], "query": task.query}
    if not task.rubric:
        return None
    expected = task.extra.get("expected_behavior")
    return {"verifier": "rubric", "rubric": task.rubric, "query": task.query, "expected_behavior": expected}


def _table(extra: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = extra.get(name)
    return table if isinstance(table, Mapping) else {}
