"""The plan of a view and a recipe over the running service's pool, cached until the pool is written to.

It is the plan of ``core.batch.plan.plan``: a fetch leases it and an export writes it, unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import streamlit as st

from core.batch.edits import n_edited_answers
from core.batch.plan import Plan, count_plan
from core.batch.plan import plan as make_plan
from core.batch.recipe import Recipe
from core.types import View
from studio import state
from studio.kit.figures import Figure, figures
from studio.kit.format import DASH, compact, count, number, percent
from studio.widgets.plans.packing import packed_layout

T = TypeVar("T")


def current_plan(view: View, recipe: Recipe) -> Plan:
    """The plan of the running service's pool; the same object, with its layout, until the pool is written to."""
    return _plan_at(*_snapshot(view, recipe), view, recipe)


def cached_answer(name: str, view: View, recipe: Recipe, more: Any, ask: Callable[[], T]) -> T:
    """The result of ``ask``, cached by name, view, recipe and ``more`` (JSON) until the pool is written to."""
    answer: T = _answer_at(*_snapshot(view, recipe), name, json.dumps(more, sort_keys=True, default=str), ask)
    return answer


def _snapshot(view: View, recipe: Recipe) -> tuple[str, int, str]:
    """A cache key: the pool, its number of writes, and the query. Equal keys have equal answers."""
    service = state.service()
    query = json.dumps([dict(view.filters), view.where, recipe.to_json()], sort_keys=True, default=str)
    return f"{service.settings.pool_path} {service.port}", service.pool.n_writes, query


@st.cache_resource(max_entries=4, show_spinner=False)
def _plan_at(opened: str, n_writes: int, query: str, _view: View, _recipe: Recipe) -> Plan:
    return make_plan(state.service().pool, _view, _recipe)


@st.cache_resource(max_entries=32, show_spinner=False)
def _answer_at(opened: str, n_writes: int, query: str, name: str, more: str, _ask: Callable[[], Any]) -> Any:
    return _ask()


def counts_now(view: View, recipe: Recipe) -> dict[str, int]:
    """``current_plan(…).counts``, computed without making the plan."""
    pool = state.service().pool
    return cached_answer("counts", view, recipe, None, lambda: count_plan(pool, view, recipe))


def plan_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Groups, trajectories, steps and tokens of ``Plan.counts``, without the ``n_`` prefix."""
    return {name: counts[f"n_{name}"] for name in ("groups", "trajectories", "steps", "tokens")}


def plan_totals(plan: Plan) -> None:
    """The totals of a plan in one row; for a large plan that is not packed, a hint where to pack it."""
    totals = plan.counts
    layout = packed_layout(plan)
    n_edited = n_edited_answers(plan)
    cells = [
        Figure("Groups", count(totals["n_groups"]), help="prompt group"),
        Figure("Trajectories", count(totals["n_trajectories"]), help="trajectory"),
        Figure("Steps", count(totals["n_steps"]), help="step")
        if not n_edited
        else Figure("Steps", count(totals["n_steps"]), sub=f"{count(n_edited)} edited", help="edited answer"),
        Figure("Tokens", compact(totals["n_tokens"]), sub=f"{compact(totals['n_loss_tokens'])} in the loss"),
    ]
    if layout is None:
        tooltip = "Packing reads every token. The Packing button opens an estimate, from which the plan can be packed."
        cells.append(Figure("Packed", DASH, sub="see Packing", help=tooltip))
    else:
        n_rows, once = len(layout.rows), layout.n_packed_tokens
        capacity = n_rows * layout.token_budget
        cells += [
            Figure("Packed", compact(once), sub="prefixes once", help="prefix tree"),
            Figure("Token ratio", number(layout.token_ratio), help="token ratio"),
            Figure(
                "Rows",
                count(n_rows),
                sub=f"{percent(capacity - once, capacity)} padding" if n_rows else "",
                help="Packed rows under the token budget",
            ),
        ]
    figures(cells, dense=True)
