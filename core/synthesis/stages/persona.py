"""Persona route: samples category, persona and operations, and has a task written for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.synthesis.answers import object_of, typed
from core.synthesis.draft import ENDING, Draft, entries_of, inputs_of
from core.synthesis.rows import Failed
from core.synthesis.seeds import read_seeds
from core.synthesis.settings import SynthesisSettings
from core.synthesis.stages.base import Product, Products, Result, Work
from core.synthesis.state import State
from core.synthesis.vectors import Vectors

SAMPLE, TASKS = "task_prompts", "tasks"


class InputFile(msgspec.Struct):
    """One input file of an answer."""

    file_path: str
    content: str


class Difficulty(msgspec.Struct):
    """How hard a task is, 1 to 5."""

    score: float
    rubric: str = ""


class TaskAnswer(msgspec.Struct):
    """A task as a model writes it, in ClawGym's keys."""

    question: str
    difficulty: Difficulty
    task_type: str = ""
    scenario: str = ""
    expected_behavior: str | list[str] = ""
    verification_points: list[str] = []
    required_basic_operations: list[str] = []
    input_files: list[InputFile] = []


def row_key(number: int) -> str:
    """Key of the row of the task ``number``."""
    return f"r{number:05d}"


def sample(settings: SynthesisSettings, state: State, vectors: Vectors) -> Mapping[str, Result]:
    """Category, persona and operations of each task."""
    seeds = read_seeds(settings.seeds_folder)
    rows: dict[str, Result] = {}
    for number in range(settings.n_tasks):
        chosen = seeds.sample(settings.seed, number, settings.n_operations)
        macro = seeds.categories[chosen["task_category"]]
        rows[row_key(number)] = {"record_index": number, **chosen, "macro_category": macro}, None
    return rows


def write_task(work: Work, products: Products) -> Product:
    """The task as a model writes it; fails for what is malformed or too easy."""
    chosen = products[SAMPLE]
    values = {
        "category": str(chosen["task_category"]),
        "persona": str(chosen["personal"]),
        "operations": "\n".join(f"- {one}" for one in chosen["basic_operations"]),
    }
    answer = typed(TaskAnswer, object_of(work.ask("writer", "task", values)))
    return checked_task(answer, work.settings)


def checked_task(answer: TaskAnswer, settings: SynthesisSettings) -> Product:
    """The answer as a product; fails for an empty question, bad files, or a difficulty below the limit."""
    product: dict[str, Any] = msgspec.to_builtins(answer)
    if not answer.question.strip():
        raise Failed("malformed: question is empty", product)
    files = inputs_of(product["input_files"])
    product["input_files"] = entries_of(files)
    product["has_input_files"] = bool(files)
    if answer.difficulty.score < settings.min_difficulty:
        raise Failed(f"its difficulty is {answer.difficulty.score:g}, below {settings.min_difficulty}", product)
    return product


def draft(products: Products) -> Draft:
    """The task for the stages that both routes share."""
    chosen, task = products[SAMPLE], products[TASKS]
    expected = task["expected_behavior"]
    lines = [expected] if isinstance(expected, str) else list(expected)
    return Draft(
        query=f"{str(task['question']).strip()} {ENDING}",
        expected="\n".join([*lines, *task.get("verification_points", ())]),
        category=str(chosen["task_category"]),
        input_files=inputs_of(task.get("input_files") or []),
        difficulty=(task.get("difficulty") or {}).get("score"),
        extra={"macro_category": chosen["macro_category"], "action": list(chosen["basic_operations"])},
    )
