"""Skill route: reads and annotates skill folders, combines them, and has a task written for each combination."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from core.synthesis.answers import object_of, typed
from core.synthesis.draft import Draft, entries_of, inputs_of
from core.synthesis.rows import Failed
from core.synthesis.settings import SynthesisSettings
from core.synthesis.skills import read_skills
from core.synthesis.stages.base import Product, Products, Result, Work
from core.synthesis.stages.persona import InputFile, row_key
from core.synthesis.state import State
from core.synthesis.vectors import Vectors

SKILLS, ANNOTATE, COMPOSE, SYNTHESIZE = "skills", "annotate", "compose", "synthesize"


class Annotation(msgspec.Struct):
    """What a model says of a skill, in ClawGym's keys."""

    language: str
    summary: str
    auth_required: bool
    text_only_compatible: bool
    has_risk: bool
    core_content: str
    auth_details: str = ""
    input_format: str = ""
    output_format: str = ""
    risk_reasons: list[str] = []
    required_env: list[str] = []
    non_text_reasons: list[str] = []


class SkillTask(msgspec.Struct):
    """A task as a model writes it, in ClawGym's keys."""

    user_query: str
    expected_behaviors: list[str]
    difficulty: float
    input_files: list[InputFile] = []
    reward_type: str = "code"
    reward_summary: str = ""
    difficulty_reason: str = ""


def read(settings: SynthesisSettings, state: State, vectors: Vectors) -> Mapping[str, Result]:
    """The skill folders, without secrets."""
    return {
        one.name: ({"name": one.name, "text": one.text, "n_secrets": one.n_secrets, "n_left_out": one.n_left_out}, None)
        for one in read_skills(Path(settings.skills))
    }


def annotate(work: Work, products: Products) -> Product:
    """What a skill needs; fails for skills that need credentials or media, or are risky."""
    skill = products[SKILLS]
    values = {"name": str(skill["name"]), "text": str(skill["text"])}
    annotation = typed(Annotation, object_of(work.ask("writer", "skill_annotation", values)))
    product = {**msgspec.to_builtins(annotation), "skill": skill["name"]}
    reasons = []
    if annotation.auth_required or annotation.required_env:
        needed = annotation.auth_details or ", ".join(annotation.required_env) or "it does not say which"
        reasons.append(f"it needs credentials: {needed}")
    if not annotation.text_only_compatible:
        reasons.append(f"it needs media: {', '.join(annotation.non_text_reasons) or 'it does not say which'}")
    if annotation.has_risk:
        reasons.append(f"it is risky: {', '.join(annotation.risk_reasons) or 'it does not say why'}")
    product["synthesizable"] = not reasons
    if reasons:
        raise Failed("; ".join(reasons), product)
    return product


def compose(settings: SynthesisSettings, state: State, vectors: Vectors) -> Mapping[str, Result]:
    """One primary skill for each task, in turn, with supporting skills chosen by the seed."""
    usable = [row.key for row in state.of_stage(ANNOTATE) if state.passes(ANNOTATE, row.key)]
    rows: dict[str, Result] = {}
    for number in range(settings.n_tasks if usable else 0):
        chance = random.Random(f"{settings.seed}/{number}")
        primary = usable[number % len(usable)]
        others = [one for one in usable if one != primary]
        supporting = chance.sample(others, min(settings.n_supporting, len(others)))
        contents = {name: _content(state, name) for name in (primary, *supporting)}
        rows[row_key(number)] = (
            {"record_index": number, "primary": primary, "supporting": supporting, "contents": contents},
            None,
        )
    return rows


def _content(state: State, name: str) -> str:
    row = state.rows[ANNOTATE, name]
    return str((row.product or {}).get("core_content", ""))


def write_task(work: Work, products: Products) -> Product:
    """The task as a model writes it; fails for what is malformed or too easy."""
    chosen = products[COMPOSE]
    contents = chosen["contents"]
    values = {
        "primary": f"{chosen['primary']}:\n{contents[chosen['primary']]}",
        "supporting": "\n\n".join(f"{name}:\n{contents[name]}" for name in chosen["supporting"]) or "none",
    }
    answer = typed(SkillTask, object_of(work.ask("writer", "skill_task", values)))
    product: dict[str, Any] = msgspec.to_builtins(answer)
    if not answer.user_query.strip():
        raise Failed("malformed: user_query is empty", product)
    files = inputs_of(product["input_files"])
    product["input_files"] = entries_of(files)
    product["requires_input_files"] = bool(files)
    if answer.difficulty < work.settings.min_difficulty:
        raise Failed(f"its difficulty is {answer.difficulty:g}, below {work.settings.min_difficulty}", product)
    return product


def draft(products: Products) -> Draft:
    """The task for the stages that both routes share; its category is the primary skill."""
    chosen, task = products[COMPOSE], products[SYNTHESIZE]
    return Draft(
        query=str(task["user_query"]).strip(),
        expected="\n".join(task["expected_behaviors"]),
        category=str(chosen["primary"]),
        input_files=inputs_of(task.get("input_files") or []),
        difficulty=task.get("difficulty"),
        extra={"skills": [chosen["primary"], *chosen["supporting"]]},
    )
