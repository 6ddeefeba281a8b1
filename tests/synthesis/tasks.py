"""Tasks, solutions and checkers as a model would write them, right and wrong, and the script of an engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROWS = "item,amount\nbread,12\nrolls,7\ncake,23\n"


def task(name: str, noun: str = "amounts", **fields: Any) -> dict[str, Any]:
    """A task whose question has a name by which the script finds it."""
    question = f"{name}: read data/sales.csv, add up its {noun}, and write out/total.json with the field total."
    return {
        "question": question,
        "task_type": "sum",
        "expected_behavior": "out/total.json has total 42",
        "input_files": [{"file_path": "data/sales.csv", "content": ROWS}],
        "difficulty": {"score": 3, "rubric": "one file"},
        **fields,
    }


OTHERS = {
    "HARBOUR": "HARBOUR: list which ships of data/sales.csv lie at the western pier, oldest first, as out/total.json.",
    "GARDEN": "GARDEN: the plant nursery wants the weight of all deliveries from data/sales.csv in out/total.json.",
    "CHOIR": "CHOIR: make a seating plan for singers and voices out of data/sales.csv; file out/total.json.",
    "ROOF": "ROOF: how many tiles does each building need according to data/sales.csv? Answer in out/total.json.",
    "TRAM": "TRAM: find faulty doors per vehicle type in data/sales.csv and report counts through out/total.json.",
}

SOLVE = """
import csv, json, pathlib
with open("data/sales.csv", newline="") as file:
    total = sum(int(row["amount"]) for row in csv.DictReader(file))
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/total.json").write_text(json.dumps({"total": total}))
"""
COPY = """
import pathlib
pathlib.Path("out").mkdir(exist_ok=True)
pathlib.Path("out/total.json").write_text(pathlib.Path("data/old.txt").read_text())
"""
CHECK = """
import csv
import json
from pathlib import Path


def grade(transcript: list, workspace_path: str) -> dict:
    root = Path(workspace_path)
    try:
        with open(root / "data/sales.csv", newline="") as file:
            expected = sum(int(row["amount"]) for row in csv.DictReader(file))
        found = json.loads((root / "out/total.json").read_text())
        return {"total": 1.0 if found["total"] == expected else 0.0}
    except (OSError, ValueError, KeyError, TypeError):
        return {"total": 0.0}


if __name__ == "__main__":
    print("a main program of its own")
"""
ALWAYS = "def grade(transcript, workspace_path):\n    return {'done': 1.0}\n"
CRASHES = "def grade(transcript, workspace_path):\n    return {'done': 1 / 0}\n"
EXISTS = """
from pathlib import Path


def grade(transcript, workspace_path):
    return {"there": 1.0 if (Path(workspace_path) / "out/total.json").exists() else 0.0}
"""
NEVER = "def grade(transcript, workspace_path):\n    return {'done': 0.0}\n"
RUBRIC = {
    "eval_type": "llm_rubric",
    "eval_input": "the file",
    "rules": [
        {
            "name": "readable",
            "file_path": "out/total.json",
            "scores": {level: f"level {level}" for level in ("0", "0.25", "0.5", "0.75", "1")},
        }
    ],
}
SOUND = {"has_factual_error": False, "has_answer_leak": False, "reasons": ""}

WRITE, JUDGE = "Write one task for an agent", "Judge a task for an agent"
SOLVING, CHECKING, RUBRICS = "Python program that solves", "Python function that checks", "A program checks the result"
ANNOTATING = "Describe a skill"


def rule(text: str | dict[str, Any], prompt: str, name: str | None = None, times: int | None = None) -> dict[str, Any]:
    """A rule of the script: the answer to a prompt, for the task of this name."""
    content = text if isinstance(text, str) else json.dumps(text)
    when = {"last_contains": prompt, **({} if name is None else {"contains": name})}
    return {"when": when, "reply": {"content": content}, **({} if times is None else {"times": times})}


def python(source: str) -> str:
    """An answer with a Python block."""
    return f"Here it is.\n```python\n{source.strip()}\n```\n"


def usual() -> list[dict[str, Any]]:
    """The rules for tasks that no rule before them matches: all is well."""
    return [
        rule(SOUND, JUDGE),
        rule(python(SOLVE), SOLVING),
        rule(python(CHECK), CHECKING),
        rule({"skip_rubric": True, "reason": "code is enough"}, RUBRICS),
    ]


def seeds(folder: Path) -> Path:
    """Seed lists with one category, so that all tasks are compared."""
    folder.mkdir()
    (folder / "personas.json").write_text(json.dumps(["A baker.", {"persona": "A singer."}]))
    (folder / "categories.json").write_text(json.dumps([{"category": "Analysis", "subcategories": ["tables"]}]))
    (folder / "operations.json").write_text(json.dumps(["read", "add", "write", "sort"]))
    return folder


class Direct:
    """Stands for the studio's client: its sessions lead straight to an engine."""

    def __init__(self, base_url: str) -> None:
        self.base_url, self.api_key = f"{base_url}/v1", "none"

    def session(self, **fields: Any) -> Direct:
        return self
