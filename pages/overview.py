"""The Overview page: counts of the pool, its funnel, and how to connect an agent."""

from typing import Any

import streamlit as st

from core.batch.leases import DEFAULT_CHANNEL
from core.pool.state.sharedsql import READY
from core.service import Service
from core.types import View
from studio import kit, state
from studio.charts import distributions
from studio.frame.header import page_header
from studio.kit.figures import Tone
from studio.kit.html_tables import bars
from studio.widgets.agents.connect_panel import connect_panel
from studio.widgets.agents.demo import demo_actions
from studio.widgets.learn.demo import learn_button
from studio.widgets.overview.attention import show_attention
from studio.widgets.overview.trends import show_trends
from studio.widgets.plans.current_plan import counts_now, plan_counts
from studio.widgets.plans.group_credit import group_recipe
from studio.widgets.plans.recipe_query import link_params

STAGES: tuple[tuple[str, View, str], ...] = (
    ("Captured", View(), "every step in the pool"),
    (
        "Linked",
        View(where="transition IS NOT NULL OR step_index = 0"),
        "first of its trajectory, or linked to a parent",
    ),
    ("Scored", View({"trajectory_reward_state": "scored"}), "its trajectory has a reward"),
    ("Trainable", View({"trajectory_reward_state": "scored", "trainable": True}), "scored and not excluded by a label"),
    ("Ready", View({"ready": True}), READY),
)
# In pools up to this size, the funnel ends with what the active recipe takes.
PLANNED_STEPS = 200_000
EXACT_TONES: dict[str, Tone] = {"bytes": "warn", "retokenized": "warn", "none": "bad"}
N_BINS = 24


def problems(service: Service) -> None:
    """Problems of capture and ingest, one line each."""
    for one in service.problems():
        (st.error if one["stops"] else st.warning)(
            kit.escape_markdown(f"{one['part']}: {one['message']}"), icon=":material/error:"
        )


def summary() -> None:
    service = state.service()
    problems(service)
    stats = service.pool.stats.totals()
    if (stats["n_steps"] == 0) != st.session_state.get("overview-empty"):
        st.rerun()
    figures(service, stats)
    left, right = st.columns(2, gap="small")
    with left.container(border=True, key="panel-funnel"):
        funnel(service)
    with right.container(border=True, key="panel-reward"):
        rewards(service)
    left, right = st.columns([3, 2], gap="small")
    with left.container(border=True, key="panel-trends"):
        show_trends(service)
    with right.container(border=True, key="panel-attention", height="stretch"):
        show_attention(service)
    by_origin(service)


def figures(service: Service, stats: dict[str, Any]) -> None:
    n_steps, n_trajectories = stats["n_steps"], stats["n_trajectories"]
    n_complete = service.pool.trajectories.count(View({"complete": True}))
    n_scored = service.pool.trajectories.count(View({"trajectory_reward_state": "scored"}))
    n_trainable = service.pool.steps.count(View({"trainable": True}))
    version = service.policy.version
    kit.figures(
        [
            kit.Figure("Steps", kit.count(n_steps), "model calls", help="step"),
            kit.Figure(
                "Trajectories", kit.count(n_trajectories), f"{kit.count(n_complete)} complete", help="trajectory"
            ),
            kit.Figure("Prompt groups", kit.count(stats["n_groups"]), "sets of siblings", help="prompt group"),
            kit.Figure(
                "Tokens",
                kit.compact(stats["n_tokens"]),
                f"{kit.compact(stats['n_response_tokens'])} sampled",
                help="Prompt and response tokens of all steps, shared prefixes counted once per step.",
            ),
            kit.Figure(
                "Scored", kit.percent(n_scored, n_trajectories), f"{kit.count(n_scored)} trajectories", help="scored"
            ),
            kit.Figure(
                "Trainable", kit.percent(n_trainable, n_steps), f"{kit.count(n_trainable)} steps", help="trainable"
            ),
            kit.Figure("Policy version", kit.DASH if version is None else str(version), "of the next call"),
        ]
    )


def funnel(service: Service) -> None:
    kit.section("Funnel", "steps that reach each stage; click one to see them")
    stages = [(label, service.pool.steps.count(view)) for label, view, _ in STAGES]
    notes = [note for *_, note in STAGES]
    if stages[0][1] <= PLANNED_STEPS:
        recipe, origin = group_recipe(DEFAULT_CHANNEL)
        stages.append(("In the plan", plan_counts(counts_now(View(), recipe))["steps"]))
        notes.append(f"taken by {recipe.estimator.title} ({origin}), channel {recipe.channel}; a click shows the rest")
    event = kit.plot(
        distributions.funnel(stages, notes=notes),
        key="chart-funnel",
        alt="Steps that reach each stage",
        on_select="rerun",
        selection_mode="points",
    )
    if event.selection.points:
        place = event.selection.points[0]["point_index"]
        if place == len(STAGES):
            state.goto("batch", tab="excluded", **link_params(View(), group_recipe(DEFAULT_CHANNEL)[0]))
        view = STAGES[place][1]
        state.goto("curate", **state.view_to_query(view))


def rewards(service: Service) -> None:
    kit.section("Rewards", "scored trajectories; click a bar to see them")
    table = service.pool.stats.histogram(View(where="step_index = 0"), "trajectory_reward", N_BINS)
    if table.num_rows == 0:
        kit.empty_state(
            "Nothing is scored", "Set rewards by a verifier, on Curate or with POST /api/v1/annotations.", icon="grade"
        )
        return
    bins = table.to_pylist()
    event = kit.plot(
        distributions.histogram(
            [one["low"] for one in bins],
            [one["high"] for one in bins],
            [one["n_steps"] for one in bins],
            noun="trajectories",
        ),
        key="chart-reward",
        alt="Rewards of trajectories",
        on_select="rerun",
        selection_mode="points",
    )
    if event.selection.points:
        one = bins[event.selection.points[0]["point_index"]]
        state.goto("curate", **state.view_to_query(View({"trajectory_reward": [one["low"], one["high"]]})))


def by_origin(service: Service) -> None:
    names = (("channel", "Channel"), ("source", "Source"), ("agent", "Agent"), ("token_source", "Token source"))
    facets = service.pool.stats.facets(View(), [name for name, _ in names])
    for column, (name, title) in zip(st.columns(4, gap="small"), names, strict=True):
        with column.container(border=True, key=f"panel-{name}", height="stretch"):
            kit.section(title, "steps")
            values = [("unknown" if value is None else str(value), n) for value, n in facets[name]]
            bars(values[:6], total=sum(n for _, n in values), tones=EXACT_TONES if name == "token_source" else {})


def page() -> None:
    page_header("overview")
    n_steps = state.service().pool.steps.count()
    st.session_state["overview-empty"] = n_steps == 0
    if n_steps == 0:
        wait_for_steps()
    else:
        kit.live(kit.refresh_interval(n_steps, 3.0))(summary)()
        learn_button(key="overview-learn")
    with kit.error_boundary():
        connect_panel()


def wait_for_steps() -> None:
    kit.empty_state(
        "Nothing is captured yet",
        "Claw Studio records every model call of your agents with its exact tokens, log-probs and policy version. "
        "You then see what the agents did, correct rewards and labels, and hand the steps to a trainer: what the pages "
        "show is what is trained. Start with the demo data, run the demo agent, or connect your own agent below.",
        icon="inbox",
        actions=demo_actions,
    )
    first_step()


@kit.live(2.0)
def first_step() -> None:
    if state.service().pool.steps.count():
        st.rerun()


page()
