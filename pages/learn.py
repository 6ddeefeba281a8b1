"""The Learn page: reward by policy version, the newest rollouts, the updates, and one task before and now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from core.batch.learning import DIFFERENCE_MAX, DIFFERENCE_MEAN, Update, updates
from core.pool.learning import Run, curves, gain
from core.tasks.learn import TRAIN_CHANNEL
from core.types import View
from studio import kit, state
from studio.charts import learn as charts
from studio.frame.header import page_header
from studio.kit.url_choices import segmented_choice
from studio.widgets.learn.comparison import comparison
from studio.widgets.learn.demo import WHAT, demo_line, learn_button
from studio.widgets.learn.tiles import tiles_html

SELECT: dict[str, Any] = {"on_select": "rerun", "selection_mode": "points"}
TRAIN, HELD_OUT = "train", "val"
LIVE_S, IDLE_S = 2.0, 10.0

Curve = Mapping[str, Any]


def learn_page() -> None:
    """The newest run, or the one in the URL; an empty state without any."""
    service = state.service()
    status = service.learning.status()
    drawn = curves(service.pool.learning.by_version(), service.pool.learning.runs())
    names = list(dict.fromkeys(curve["run"].name for curve in drawn if not curve["run"].about.get("control")))
    st.session_state["learn-running"] = status["running"]
    progress()
    if not drawn:
        if not status["running"]:
            kit.empty_state(
                "No policy version has rewards yet",
                "This page shows reward by policy version for any trainer that reports versions and acknowledges its "
                "batches. The demo trains a small policy on this machine.",
                icon="trending_up",
                actions=start_actions,
            )
        else:
            st.caption("The first evaluation is under way.")
        watch()
        return
    chosen = names[-1] if names else drawn[-1]["run"].name
    if len(names) > 1:
        options = {name: kit.escape_markdown(name) for name in reversed(names)}
        chosen = segmented_choice("Run", options, "run")
    kit.live(LIVE_S if status["running"] else IDLE_S)(live_part)(chosen)
    if not status["running"]:
        start_actions("learn-again")


@kit.live(LIVE_S)
def progress() -> None:
    """Progress of the demo; the page is drawn again when it starts or ends."""
    status = state.service().learning.status()
    if status["running"] != st.session_state["learn-running"]:
        st.rerun()
    demo_line(status)


def start_actions(key: str) -> None:
    """The start button, and whether the control follows."""
    with st.container(horizontal=True, horizontal_alignment="center", vertical_alignment="center", gap="small"):
        control = st.checkbox(
            "Also run a control with shuffled rewards",
            key=f"{key}-control",
            help="A second run in which the rewards within a group are shuffled. Its reward should not rise.",
        )
        learn_button(key=f"{key}-start", primary=True, control=control)


@kit.live(LIVE_S)
def watch() -> None:
    """Draw the page again when the first rewards appear."""
    if state.service().pool.learning.by_version():
        st.rerun()


def live_part(name: str) -> None:
    """All that changes while a policy is trained."""
    service = state.service()
    pool = service.pool
    drawn = curves(pool.learning.by_version(), pool.learning.runs())
    mine = [curve for curve in drawn if curve["run"].name == name]
    if not mine:
        return
    run: Run = mine[0]["run"]
    train, held_out = str(run.about.get("train", TRAIN)), str(run.about.get("val", HELD_OUT))
    main = next((curve for curve in mine if curve["channel"] == held_out), mine[0])
    made = [one for one in updates(pool, train) if inside(run, one.version)]
    numbers(run, main, mine, made)
    if train == TRAIN_CHANNEL:
        st.caption(WHAT)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        kit.section("Reward by policy version", "with 95 % bands; click a point to see its attempts")
        shown = [main, *(curve for curve in mine if curve is not main), *controls_of(run, drawn, main["channel"])]
        event = kit.plot(
            charts.success([{**curve, **look(curve, main)} for curve in shown]),
            key=f"learn-success-{name}",
            alt="Mean reward by policy version",
            **SELECT,
        )
        if (points := event["selection"]["points"]) and "customdata" in points[0]:
            channel, version = points[0]["customdata"][0], int(points[0]["customdata"][1])
            view = View({"channel": channel}, where=f"policy_version = {version}")
            state.goto("inspect", level="trajectories", **state.view_to_query(view))
    with right:
        rows = pool.learning.newest(train, last=run.last_version)
        of_version = f"version {rows[0]['version']}; a row per task" if rows else "no rollouts yet"
        kit.section("Newest rollouts", of_version)
        st.html(tiles_html(rows))
    of_updates(made)
    kit.section("The same task, before and now", f"channel {main['channel']}; first and newest version of this run")
    last = run.last_version if run.last_version is not None else max(point.version for point, _ in main["points"])
    comparison(pool.learning.pairs(main["channel"], run.first_version, last))


def inside(run: Run, version: int | None) -> bool:
    """Whether a version belongs to the run."""
    if version is None or version < run.first_version:
        return False
    return run.last_version is None or version <= run.last_version


def controls_of(run: Run, drawn: Sequence[Curve], channel: str) -> list[Curve]:
    """The held-out curve of the control that follows this run."""
    if run.last_version is None:
        return []
    return [
        curve
        for curve in drawn
        if curve["run"].first_version == run.last_version + 1
        and curve["run"].about.get("control")
        and curve["channel"] == channel
    ]


def look(curve: Curve, main: Curve) -> dict[str, Any]:
    """Label and line of a curve."""
    control = curve["run"].about.get("control")
    if control:
        return {"label": f"control: {control}", "dashed": True, "banded": True, "joined": True}
    about = curve["run"].about
    names = {about.get("val"): "held-out", about.get("train"): "training", about.get("greedy"): "held-out, greedy"}
    is_main = curve is main
    label = names.get(curve["channel"], curve["channel"])
    # Greedy success is measured at the ends only: a line would show versions that were not measured.
    joined = curve["channel"] != about.get("greedy")
    return {"label": label, "dashed": not is_main, "banded": is_main, "joined": joined}


def numbers(run: Run, main: Curve, mine: Sequence[Curve], made: Sequence[Update]) -> None:
    """The row of figures."""
    (first, _), (last, n_updates) = main["points"][0], main["points"][-1]
    greedy = next((curve for curve in mine if curve["channel"] == run.about.get("greedy")), None)
    newest = made[-1] if made else None
    metrics = {} if newest is None else newest.metrics
    took, gained = None if newest is None else newest.seconds, gain(main)
    version = state.service().policy.version
    cells = [
        kit.Figure("Policy version", kit.count(version), f"{kit.count(n_updates)} since the start"),
        kit.Figure(
            "Reward now", share(last.mean), band_text(last.low, last.high), "good" if gained > 0 else "",
            f"Mean over {last.n_trajectories} attempts of channel {last.channel} under version {last.version}, "
            "with the 95 % band",
        ),
        kit.Figure("At the start", share(first.mean), band_text(first.low, first.high)),
        kit.Figure("Gain", f"{100 * gained:+.1f}", "points"),
    ]  # fmt: skip
    if greedy is not None:
        values = [share(point.mean) for point, _ in greedy["points"]]
        cells.append(kit.Figure("Greedy", values[-1], f"{values[0]} at the start", help="At temperature 0"))
    cells += [
        kit.Figure(
            "Update took", kit.seconds(took), "rollouts to weights", help="Sum of the stages of the last update"
        ),
        kit.Figure("Staleness", kit.count(None if newest is None else newest.staleness_max), "versions, oldest step"),
        kit.Figure(
            "Log-prob difference",
            small(metrics.get(DIFFERENCE_MEAN)),
            "nats, mean",
            help="Captured against recomputed log-probs of the last batch. 0 up to rounding if the weights match",
        ),
        kit.Figure("Entropy", kit.number(metrics.get("entropy")), "nats per token"),
    ]
    kit.figures(cells, dense=True)


def of_updates(made: Sequence[Update]) -> None:
    """Charts over the updates; a click opens the batch."""
    if not made:
        return
    stages, *others = st.columns([2, 1, 1, 1, 1], gap="small")
    with stages:
        kit.section("Update time", "by stage")
        open_batch(
            kit.plot(charts.stages(made), key="learn-stages", alt="Seconds of each stage of an update", **SELECT)
        )
    mean, most = [one.metrics.get(DIFFERENCE_MEAN) for one in made], [one.metrics.get(DIFFERENCE_MAX) for one in made]
    drawings: tuple[tuple[str, dict[str, list[float | None]]], ...] = (
        ("Log-prob difference", {"mean": mean, "largest": most}),
        ("Staleness", {"oldest step": [one.staleness_max for one in made]}),
        ("Token ratio", {"packed / fetched": [one.metrics.get("token_ratio") for one in made]}),
        ("Entropy", {"nats": [one.metrics.get("entropy") for one in made]}),
    )
    for column, (title, values) in zip(others, drawings, strict=True):
        with column:
            kit.section(title)
            if all(value is None for series in values.values() for value in series):
                st.caption("Not reported by the trainer.")
                continue
            chart = charts.measure(made, values, height=180, zero=True)
            open_batch(kit.plot(chart, key=f"learn-{title}", alt=f"{title} by update", **SELECT))


def open_batch(event: Any) -> None:
    """Open the batch of a clicked mark."""
    points = event["selection"]["points"] if event else []
    if points and points[0].get("customdata"):
        state.goto("consume", batch=points[0]["customdata"][0])


def share(mean: float) -> str:
    """A mean reward: a percentage if it lies in [0, 1]."""
    return f"{100 * mean:.1f} %" if 0 <= mean <= 1 else kit.number(mean)


def small(value: float | None) -> str:
    """A number that may be far below 1: with its order of magnitude."""
    return f"{value:.1e}" if value is not None and 0 < abs(value) < 1e-3 else kit.number(value)


def band_text(low: float | None, high: float | None) -> str:
    """The band as text."""
    return "no band" if low is None or high is None else f"{share(low)} to {share(high)}"


page_header("learn")
learn_page()
