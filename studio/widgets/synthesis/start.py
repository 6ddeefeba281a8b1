"""The form that estimates and starts a run of the synthesis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from core.errors import StudioError
from core.sandbox import LEVELS
from core.synthesis import ROUTES
from core.synthesis.routes import route_of
from core.synthesis.settings import PERSONA
from studio import kit, state
from studio.kit.html_tables import html_table

TITLES = {"persona": "Persona route", "skill": "Skill route"}
ALL_STAGES = "all stages"


def start_form() -> None:
    """Route, models, seeds and budget; estimates what a run would cost, or starts it and shows it."""
    route = st.segmented_control(
        "Route", list(ROUTES), default=PERSONA, format_func=TITLES.__getitem__, required=True, key="synthesis-route"
    )
    st.caption(ROUTES[route])
    with st.form("new-synthesis", border=True):
        left, middle, right = st.columns(3, gap="medium")
        with left:
            fields = _task_fields(route)
        with middle:
            fields |= _model_fields()
        with right:
            fields |= _budget_fields()
        with st.expander("Checks and sampling", icon=":material/tune:"):
            fields |= _check_fields()
        until = fields.pop("until")
        with st.container(horizontal=True, gap="small"):
            start = st.form_submit_button("Start", icon=":material/play_arrow:", type="primary")
            dry = st.form_submit_button("Estimate", icon=":material/calculate:", help="Nothing is started")
    if not start and not dry:
        return
    host = state.service().synthesis
    given = {"route": route, **{name: value for name, value in fields.items() if value not in (None, "")}}
    try:
        with st.spinner("Checking models, seeds and sandbox…"):
            if dry:
                show_estimate(host.plan(given)[1])
                return
            run = host.start(given, until=None if until == ALL_STAGES else until)
    except StudioError as error:
        kit.show_error(error)
        return
    state.goto("synthesis", run=run.settings.run)


def _task_fields(route: str) -> dict[str, Any]:
    made: dict[str, Any] = {"n_tasks": int(st.number_input("Tasks to start", 1, 100_000, 10))}
    if route == PERSONA:
        made["seeds"] = st.text_input(
            "Folder of seed lists",
            placeholder="built-in",
            help="personas.json, categories.json, operations.json; an absolute path",
        ).strip()
    else:
        made["skills"] = st.text_input(
            "Folder of skills",
            placeholder="built-in",
            help="A folder of folders with a SKILL.md, as OpenClaw and Claude Code have them; an absolute path",
        ).strip()
    made["seed"] = int(st.number_input("Sampling seed", 0, 2**31 - 1, 0))
    made["until"] = st.selectbox(
        "Stop after",
        [ALL_STAGES, *(one.name for one in route_of(route).stages[:-1])],
        help="Lets you review the rows of a stage before the next one starts",
    )
    return made


def _model_fields() -> dict[str, Any]:
    writer = "the model above"
    return {
        "model": st.text_input("Task-writing model", placeholder="the engine's only model").strip(),
        "judge_model": st.text_input("Judge", placeholder=writer).strip(),
        "solver_model": st.text_input(
            "Solution model", placeholder=writer, help="Writes the reference solutions; it does not see the checker"
        ).strip(),
        "embedding_model": st.text_input(
            "Embedding model", placeholder="none: TF-IDF of words", help="Its vectors are compared for novelty"
        ).strip(),
    }


def _budget_fields() -> dict[str, Any]:
    return {
        "max_calls": st.number_input("Max calls", 1, value=None, placeholder="no limit"),
        "max_total_tokens": st.number_input("Max tokens", 1, value=None, placeholder="no limit"),
        "max_usd": st.number_input(
            "Max US dollars", 0.01, value=None, placeholder="no limit", help="The prices of all models must be known"
        ),
        "workers": int(st.number_input("Parallel rows", 1, 64, 4)),
    }


def _check_fields() -> dict[str, Any]:
    first, second, third, fourth = st.columns(4, gap="medium")
    with first:
        made: dict[str, Any] = {
            "novelty": st.number_input(
                "Near-duplicate threshold", 0.0, 1.0, 0.9, 0.01, help="Cosine within a category"
            ),
            "min_difficulty": int(st.number_input("Min difficulty", 0, 5, 0, help="As rated by the model; 0: any")),
        }
    with second:
        made["min_mutation_score"] = st.number_input(
            "Required mutation score", 0.0, 1.0, 0.5, 0.05, help="Share of wrong results that must score less"
        )
        made["n_mutants"] = int(st.number_input("Max mutants", 1, 1000, 8))
    with third:
        made["n_runs"] = int(
            st.number_input("Runs per checker", 1, 1000, 10, help="Repeated to detect unstable scores")
        )
        made["repair_rounds"] = int(st.number_input("Repair rounds", 0, 20, 3))
    with fourth:
        made["temperature"] = st.number_input("Temperature", 0.0, value=None, placeholder="the engine's")
        made["isolation"] = st.selectbox("Minimum isolation", LEVELS)
    return made


def show_estimate(cost: Mapping[str, Any]) -> None:
    """Calls, tokens and money, at least and at most."""
    usd = None if cost["usd"] is None else _range(*(f"{one:.2f}" for one in cost["usd"]))
    kit.figures(
        [
            kit.Figure("Calls", _range(*map(kit.count, cost["calls"])), "minimum to maximum"),
            kit.Figure("Tokens", _range(*map(kit.compact, cost["tokens"])), "prompts and answers"),
            kit.Figure("US dollars", usd or kit.DASH, "" if usd else "a price is unknown"),
        ],
        dense=True,
    )
    html_table(
        ("stage", "prompt", "model", "calls", "prompt tokens", "answer tokens"),
        [
            (
                kit.escape(one["stage"]),
                kit.escape(one["prompt"]),
                kit.escape(one["model"]),
                _range(kit.count(one["least_calls"]), kit.count(one["most_calls"])),
                kit.count(one["prompt_tokens"]),
                kit.count(one["answer_tokens"]),
            )
            for one in cost["stages"]
        ],
        numeric=(3, 4, 5),
    )
    st.caption("Estimated from assumed lengths, with every row passing every stage; tokens are those of one call.")


def _range(least: str, most: str) -> str:
    return least if least == most else f"{least} – {most}"
