"""The rows of a stage as people read them: one line of what was made, why it failed, and what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.synthesis.routes import Route
from core.synthesis.rows import Row
from core.synthesis.state import State
from core.synthesis.work import waiting

MAX_TEXT = 300
_TEXTS = ("question", "user_query", "summary", "nearest_query", "reasons", "reason", "personal", "primary", "name")
"""Fields of products that say what they are, the best first."""


def listed(route: Route, stage: str, state: State) -> list[dict[str, Any]]:
    """The rows of a stage in order of their keys.

    Of each: ``row, state, decision, passes, waiting`` (it is made, again, when the run goes on), ``reason, text,
    edited, transient, models, n_calls, cost_usd, wall_s, at``; of novelty ``similarity, nearest``; of the checker
    ``mutation_score, flakiness, solution_score, n_answers``. None where there is nothing to say.

    Raises:
        InvalidInput: the route has no such stage.
    """
    late = set(waiting(route.stage(stage), state)) if route.stage(stage).make is not None else set()
    return [_line(row, state, row.key in late) for row in state.of_stage(stage)]


def _line(row: Row, state: State, late: bool) -> dict[str, Any]:
    product: Mapping[str, Any] = row.product or {}
    proof: Mapping[str, Any] = product.get("proof") or {}
    rounds = product.get("rounds_used")
    return {
        "row": row.key,
        "state": row.state,
        "decision": state.decisions.get((row.stage, row.key)),
        "passes": state.passes(row.stage, row.key),
        "waiting": late or state.current(row.stage, row.key) is None,
        "reason": row.reason,
        "text": _text(product),
        "edited": row.edited,
        "transient": row.transient,
        "models": list(row.models),
        "n_calls": row.n_calls,
        "cost_usd": row.cost_usd,
        "wall_s": row.wall_s,
        "at": row.at,
        "similarity": product.get("similarity"),
        "nearest": product.get("nearest"),
        "mutation_score": proof.get("mutation_score"),
        "flakiness": proof.get("flakiness"),
        "solution_score": proof.get("solution_score"),
        "n_answers": rounds,
    }


def _text(product: Mapping[str, Any]) -> str | None:
    if "query" in product:
        return _short(product["query"])
    return next((_short(product[name]) for name in _TEXTS if product.get(name)), None)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"
