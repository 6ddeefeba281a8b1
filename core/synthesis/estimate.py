"""What a run would cost, before it begins: calls, tokens and money, at least and at most."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.scoring.prices import price_of
from core.synthesis.embedding import AT_ONCE
from core.synthesis.routes import route_of
from core.synthesis.settings import SKILL, SynthesisSettings
from core.synthesis.skills import read_skills
from core.synthesis.stages.shared import DEDUP
from core.synthesis.stages.skill import ANNOTATE
from core.synthesis.templates import shipped

CHARS_PER_TOKEN = 4
"""Assumed characters of a token."""
TASK_TOKENS = 1500
"""Assumed tokens of a task with its input files, in a prompt."""
ANSWER_TOKENS = {
    "task": 2000,
    "task_judge": 150,
    "solution": 800,
    "checker": 1500,
    "rubric": 500,
    "skill_annotation": 700,
    "skill_task": 2000,
}
"""Assumed tokens of an answer, by prompt. They are assumptions and not measured; reasoning models need more."""
ROLES = {"task_judge": "judge", "solution": "solver"}
REPAIRED = ("solution", "checker")
EMBEDDING = "embedding"
"""Stands for the prompt where texts are embedded: one call for many queries."""
QUERY_TOKENS = 250
"""Assumed tokens of the query of a task."""


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """What the calls of one prompt need: ``least`` if every row passes at once, ``most`` with all repairs."""

    stage: str
    prompt: str
    model: str
    least_calls: int
    most_calls: int
    prompt_tokens: int
    answer_tokens: int
    least_usd: float | None
    most_usd: float | None


def estimate(settings: SynthesisSettings) -> dict[str, Any]:
    """``{calls: [least, most], tokens: [least, most], usd: [least, most] or null, stages: [...]}``.

    Rows that earlier stages remove are not subtracted, as their number is not known. ``prompt_tokens`` and
    ``answer_tokens`` are those of one call. A price is null where the model's price is not known.

    Raises:
        InvalidInput: the skills can't be read.
    """
    parts = _parts(settings)
    tokens = [one.prompt_tokens + one.answer_tokens for one in parts]
    usd: list[float] | None = None
    least = [one.least_usd for one in parts if one.least_usd is not None]
    most = [one.most_usd for one in parts if one.most_usd is not None]
    if len(least) == len(most) == len(parts):
        usd = [sum(least), sum(most)]
    return {
        "calls": [sum(one.least_calls for one in parts), sum(one.most_calls for one in parts)],
        "tokens": [
            sum(one.least_calls * n for one, n in zip(parts, tokens, strict=True)),
            sum(one.most_calls * n for one, n in zip(parts, tokens, strict=True)),
        ],
        "usd": usd,
        "stages": [{name: getattr(one, name) for name in one.__slots__} for one in parts],
    }


def _parts(settings: SynthesisSettings) -> list[StageEstimate]:
    templates, parts = shipped(), []
    n_skills = len(read_skills(Path(settings.skills))) if settings.route == SKILL else 0
    for stage in route_of(settings.route).stages:
        if stage.name == DEDUP and settings.embedding_model:
            parts.append(_embedding(settings))
        for prompt in stage.prompts:
            n_rows = n_skills if stage.name == ANNOTATE else settings.n_tasks
            n_most = n_rows * (settings.repair_rounds + 1 if prompt in REPAIRED else 1)
            model = settings.model_of(ROLES.get(prompt, "writer"))
            n_prompt = len(templates[prompt].text) // CHARS_PER_TOKEN + TASK_TOKENS
            n_answer = min(ANSWER_TOKENS[prompt], settings.max_tokens)
            price = price_of(model)
            one = None if price is None else price.of(n_prompt, n_answer)
            parts.append(
                StageEstimate(
                    stage.name,
                    prompt,
                    model,
                    n_rows,
                    n_most,
                    n_prompt,
                    n_answer,
                    None if one is None else one * n_rows,
                    None if one is None else one * n_most,
                )
            )
    return parts


def _embedding(settings: SynthesisSettings) -> StageEstimate:
    n_calls = -(-settings.n_tasks // AT_ONCE)
    n_prompt = min(settings.n_tasks, AT_ONCE) * QUERY_TOKENS
    price = price_of(settings.embedding_model)
    usd = None if price is None else price.of(n_prompt, 0)
    total = None if usd is None else usd * n_calls
    return StageEstimate(DEDUP, EMBEDDING, settings.embedding_model, n_calls, n_calls, n_prompt, 0, total, total)
