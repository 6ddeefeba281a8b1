"""Stages of both routes: novelty, the judge, the rubric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from core.errors import InvalidInput
from core.packs.fields import rules_of
from core.synthesis.answers import object_of, typed
from core.synthesis.draft import Draft
from core.synthesis.novelty import nearest_kept
from core.synthesis.rows import ACCEPTED, REJECTED, Failed
from core.synthesis.settings import SynthesisSettings
from core.synthesis.stages.base import MakeAll, Product, Products, Result, Work
from core.synthesis.state import State
from core.synthesis.vectors import Vectors

DEDUP, JUDGE, RUBRICS = "dedup", "judge", "rubrics"
LEVELS = ("0", "0.25", "0.5", "0.75", "1")
ReadDraft = Callable[[Products], Draft]


class JudgeAnswer(msgspec.Struct):
    """What the judge says of a task, in ClawGym's keys. Flags are true and false, or 1 and 0."""

    has_factual_error: bool | int
    has_answer_leak: bool | int
    reasons: str | list[str] = ""


def novelty(sample: str, task: str, draft: ReadDraft) -> MakeAll:
    """The stage that removes near-duplicates. The stages ``sample`` and ``task`` of the route make its tasks."""

    def make_all(settings: SynthesisSettings, state: State, vectors: Vectors) -> Mapping[str, Result]:
        keys = [row.key for row in state.of_stage(task) if state.passes(task, row.key)]
        keys = [key for key in keys if state.decisions.get((DEDUP, key)) != REJECTED]
        drafts = [draft({name: state.rows[name, key].product or {} for name in (sample, task)}) for key in keys]
        neighbours = nearest_kept(
            [one.query for one in drafts],
            [one.category for one in drafts],
            settings.novelty,
            always=[at for at, key in enumerate(keys) if state.decisions.get((DEDUP, key)) == ACCEPTED],
            vectors=vectors,
        )
        rows: dict[str, Result] = {}
        for key, one, nearest in zip(keys, drafts, neighbours, strict=True):
            other = None if nearest.index is None else keys[nearest.index]
            product = {
                "nearest": other,
                "nearest_query": None if nearest.index is None else drafts[nearest.index].query,
                "similarity": None if nearest.similarity is None else round(nearest.similarity, 6),
                "query": one.query,
                "vectors": settings.embedding_model or "TF-IDF",
            }
            duplicate = nearest.similarity is not None and nearest.similarity >= settings.novelty
            reason = f"near-duplicate of {other}: cosine {nearest.similarity:.3f}" if duplicate else None
            rows[key] = product, reason
        return rows

    return make_all


def judging(draft: ReadDraft) -> Callable[[Work, Products], Product]:
    """The stage that asks a judge for factual errors and answer leaks."""

    def make(work: Work, products: Products) -> Product:
        task = draft(products)
        values = {"query": task.query, "files": task.files_text, "expected": task.expected}
        answer = typed(JudgeAnswer, object_of(work.ask("judge", "task_judge", values)))
        why = answer.reasons if isinstance(answer.reasons, str) else "; ".join(answer.reasons)
        product = {
            "has_factual_error": bool(answer.has_factual_error),
            "has_answer_leak": bool(answer.has_answer_leak),
            "reasons": why,
        }
        faults = {"factual error": product["has_factual_error"], "answer leak": product["has_answer_leak"]}
        names = [name for name, there in faults.items() if there]
        if names:
            raise Failed(f"{' and '.join(names)}: {why or 'the judge gives no reason'}", product)
        return product

    return make


def rubric(draft: ReadDraft) -> Callable[[Work, Products], Product]:
    """The stage that asks for rules for what code can't check; a model may skip it."""

    def make(work: Work, products: Products) -> Product:
        task = draft(products)
        made = products["validation_code"]
        values = {"query": task.query, "expected": task.expected, "code": str(made["code"])}
        answer = object_of(work.ask("writer", "rubric", values))
        if answer.get("skip_rubric"):
            return {"skip_rubric": True, "reason": str(answer.get("reason") or ""), "rules": []}
        return {
            "skip_rubric": False,
            "eval_type": "llm_rubric",
            "score_options": [float(one) if "." in one else int(one) for one in LEVELS],
            "eval_input": str(answer.get("eval_input") or "Read the files that the rules name."),
            "rules": _rules(answer),
        }

    return make


def _rules(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """ClawGym's rules: five levels with distinct texts, distinct names."""
    try:
        rules = rules_of(answer.get("rules"), "rules")
    except InvalidInput as error:
        raise Failed(f"malformed: {error.field}: {error.message}", answer) from error
    if not rules:
        raise Failed("malformed: the rubric has no rules, and skip_rubric is not true", answer)
    for rule in rules:
        texts = {str(level): str(text).strip() for level, text in rule["scores"].items()}
        if sorted(texts) != sorted(LEVELS) or len(set(texts.values())) < len(LEVELS):
            raise Failed(
                f"malformed: the rule {rule['name']} needs the levels {', '.join(LEVELS)} with distinct texts", answer
            )
    if len({rule["name"] for rule in rules}) < len(rules):
        raise Failed("malformed: two rules have the same name", answer)
    return [{"name": one["name"], "file_path": one["file_path"], "scores": one["scores"]} for one in rules]
