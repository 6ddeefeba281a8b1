"""The Collect page: live view of captured calls. All reads are bounded, so it works at hundreds of calls per second."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pyarrow as pa
import streamlit as st

from core.journal import LOCAL
from core.service import Service
from core.types import View
from studio import kit, state
from studio.charts import rates
from studio.frame.header import page_header
from studio.frame.status import engine_state
from studio.glossary import define
from studio.kit.figures import Tone
from studio.kit.html_tables import bars, dot_label, html_table
from studio.widgets.agents.connect_panel import connect_panel
from studio.widgets.agents.demo import demo_actions, demo_control

N_NEWEST = 50
SHOWN = (
    "created_at", "agent", "model", "channel", "status", "call_kind", "transition",
    "n_prompt_tokens", "n_response_tokens", "latency_s", "token_source", "identity_source", "preview",
)  # fmt: skip
FILTERS = ("channel", "source")
N_FEEDBACK = 8
FEEDBACK_CHARS = 120
ENGINE_TONE: dict[bool | None, Tone] = {True: "good", False: "bad", None: ""}
REFUSED = {
    "unauthorized": "unknown or revoked key",
    "too_many_attempts": "too many wrong keys",
    "forbidden": "key without this right",
    "host": "another host name",
    "origin": "page of another origin",
    "media_type": "not declared as JSON",
}
REFUSED_HELP = "Requests that were answered with an error before their body was read. They are not captured."
TONES: dict[str, Tone] = {"up": "good", "down": "bad"}


def percentile(values: list[float], share: float) -> float | None:
    """The quantile at ``share`` in [0, 1], nearest rank; None without values."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else None


def unshipped_figure(service: Service) -> list[kit.Figure]:
    """Bytes that the journal's target has not confirmed; none if calls are stored on this disk alone."""
    if service.settings.journal_target == LOCAL:
        return []
    n_bytes, waited_s = service.unshipped()
    detail = f"for {kit.seconds(waited_s)}" if n_bytes else "all copied"
    return [kit.Figure("Not yet copied", kit.bytes_text(n_bytes), detail, tone="bad" if waited_s > 5 else "")]


def held_figure(service: Service) -> list[kit.Figure]:
    """Calls that wait for another machine; none on a single machine."""
    states = [writer["state"] for writer in service.ingest.other_writers()]
    if not states:
        return []
    n_held, n_behind = service.ingest.n_held, len(states) - states.count("in_time")
    detail = f"oldest {kit.seconds(service.ingest.held_s)}, " if n_held else ""
    detail += f"{n_behind} of {kit.counted(len(states), 'writer')} behind"
    return [kit.Figure("Held", kit.count(n_held), detail, tone="bad" if n_behind else "")]


def refused_figure(refusals: Mapping[str, int]) -> list[kit.Figure]:
    """Requests that were refused before they were calls, with the most frequent reason; none if none was."""
    n_refused = sum(refusals.values())
    if not n_refused:
        return []
    reason = max(refusals, key=refusals.__getitem__)
    return [kit.Figure("Refused", kit.count(n_refused), REFUSED.get(reason, reason), tone="warn", help=REFUSED_HELP)]


@kit.live(1.0)
def traffic() -> None:
    service = state.service()
    live = service.stats.snapshot(n_recent=0)
    latency = [event.latency_s for event in list(service.stats.recent)]
    lag, failure = service.ingest.lag_s, service.ingest.last_error
    n_calls, n_errors, n_dropped = live["n_calls"], live["n_errors"], live["n_dropped"]
    rate = {name: windows["10"] for name, windows in live["rates"].items()}
    newest = f"newest {len(latency)} calls"
    kit.figures(
        [
            kit.Figure("Calls/s", kit.number(rate["calls_per_s"], 1), "mean of 10 s"),
            kit.Figure("Tokens/s", kit.compact(rate["tokens_per_s"]), "mean of 10 s"),
            kit.Figure("Latency p50", kit.seconds(percentile(latency, 0.5)), newest, help="latency"),
            kit.Figure("Latency p95", kit.seconds(percentile(latency, 0.95)), newest, help="latency"),
            kit.Figure("In flight", kit.count(live["n_in_flight"]), "being answered"),
            kit.Figure("Calls", kit.count(n_calls), "since the start"),
            kit.Figure("Errors", kit.count(n_errors), kit.percent(n_errors, n_calls), tone="bad" if n_errors else ""),
            kit.Figure(
                "Ingest lag",
                kit.seconds(lag),
                str(failure) if failure else "call to pool",
                tone="bad" if failure else "",
                help="ingest lag",
            ),
            *refused_figure(live["refused"]),
            *unshipped_figure(service),
            *held_figure(service),
            kit.Figure(
                "Dropped", kit.count(n_dropped), "must be 0", tone="bad" if n_dropped else "good", help="dropped"
            ),
        ]
    )
    left, middle, right = st.columns(3, gap="small")
    with left.container(border=True, key="panel-calls"):
        kit.section("Calls per second", "last minute")
        st.html(rates.call_rate(live["series"]))
    with middle.container(border=True, key="panel-tokens"):
        kit.section("Response tokens per second", "last minute")
        st.html(rates.token_rate(live["series"]))
    with right.container(border=True, key="panel-latency"):
        kit.section("Latency", newest)
        st.html(rates.latencies(latency))


def newest_view() -> View:
    """The filters of the newest calls."""
    chosen = {name: st.session_state.get(name) for name in FILTERS}
    return View({name: value for name, value in chosen.items() if value is not None})


def controls() -> bool:
    """The controls above the newest calls. Returns whether the table updates automatically."""
    facets = state.service().pool.stats.facets(View(), FILTERS)
    with st.container(horizontal=True, vertical_alignment="center", key="newest-head"):
        kit.section("Newest calls", f"the last {N_NEWEST}; click one to inspect it")
        with st.container(width=215, key="demo-control"):
            demo_control()
        for name in FILTERS:
            options = [str(value) for value, _ in facets[name] if value is not None]
            if (wanted := state.query(name)) is not None and wanted not in options:
                options.append(wanted)
            st.selectbox(
                name.capitalize(),
                options,
                index=None,
                placeholder=f"Any {name}",
                key=name,
                bind="query-params",
                width=150,
                label_visibility="collapsed",
            )
        return bool(st.toggle("Follow", value=True, key="follow", bind="query-params", width="content"))


def open_clicked() -> None:
    """Store the clicked step; rows shift, so its uid is taken from the table that was shown."""
    cells = st.session_state["newest-table"]["selection"]["cells"]
    if cells:
        st.session_state["open-step"] = st.session_state["newest-uids"][cells[0][0]]


def newest() -> None:
    if (step_uid := st.session_state.pop("open-step", None)) is not None:
        state.goto("inspect", step=step_uid)
    service = state.service()
    follow = st.session_state.get("follow", True)
    view = newest_view()
    if follow or st.session_state.get("newest-view") != view:
        st.session_state["newest-frame"] = service.pool.steps.page(view, order="created_at desc", limit=N_NEWEST)
        st.session_state["newest-view"] = view
        st.session_state["newest-total"] = service.pool.steps.count()
    table: pa.Table = st.session_state["newest-frame"]
    if table.num_rows == 0:
        running = service.demo.status()["running"]
        kit.empty_state(
            "No call yet",
            "Calls appear here when they are captured.",
            icon="sensors",
            actions=None if running else demo_actions,
        )
        return
    if not follow:
        n_new = service.pool.steps.count() - st.session_state["newest-total"]
        st.caption(f"Paused; {kit.count(n_new)} steps arrived since. Turn on Follow to see them.")
    st.session_state["newest-uids"] = table["step_uid"].to_pylist()
    st.dataframe(
        _local_time(table.select(SHOWN)),
        key="newest-table",
        on_select=open_clicked,
        selection_mode="single-cell",
        hide_index=True,
        height=420,
        row_height=30,
        placeholder=kit.DASH,
        column_config=COLUMNS,
        alt="The newest calls",
    )


def _local_time(table: pa.Table) -> Any:
    frame = table.to_pandas()
    frame["created_at"] = frame["created_at"].dt.tz_localize("UTC").dt.tz_convert(st.context.timezone or "UTC")
    return frame


COLUMNS = {
    "created_at": st.column_config.DatetimeColumn("Time", format="HH:mm:ss.SSS", width=88),
    "agent": st.column_config.TextColumn("Agent", width=90, help=define("agent")),
    "model": st.column_config.TextColumn("Model", width=90),
    "channel": st.column_config.TextColumn("Channel", width=58, help=define("channel")),
    "status": st.column_config.TextColumn("Status", width=58),
    "call_kind": st.column_config.TextColumn("Call kind", width=70, help=define("call kind")),
    "transition": st.column_config.TextColumn("Transition", width=84, help=define("transition")),
    "n_prompt_tokens": st.column_config.NumberColumn("Prompt", format="localized", width=60, help="Prompt tokens"),
    "n_response_tokens": st.column_config.NumberColumn("Sampled", format="localized", width=64, help="Response tokens"),
    "latency_s": st.column_config.NumberColumn("Latency", format="%.2f s", width=64, help=define("latency")),
    "token_source": st.column_config.TextColumn("Tokens", width=68, help=define("token_source")),
    "identity_source": st.column_config.TextColumn("Identity", width=68, help=define("identity_source")),
    "preview": st.column_config.TextColumn("Answer"),
}


@kit.live(2.0)
def breakdown() -> None:
    live = state.service().stats.snapshot(n_recent=0)
    kit.section("Callers", "calls since the start")
    columns = st.columns(4, gap="small")
    for column, (name, title) in zip(
        columns, (("agent", "Agent"), ("model", "Model"), ("source", "Source"), ("channel", "Channel")), strict=True
    ):
        with column.container(border=True, key=f"panel-by-{name}", height="stretch"):
            kit.section(title)
            counts = live["by"][name]
            if counts:
                bars(list(counts.items())[:6], total=sum(counts.values()))
            else:
                st.caption("No call since the start.")


@kit.live(2.0)
def health() -> None:
    service = state.service()
    live = service.stats.snapshot(n_recent=0)
    left, right = st.columns([3, 2], gap="small")
    with left.container(border=True, key="panel-engines", height="stretch"):
        kit.section("Engines", "probed capabilities")
        rows = [engine_row(engine) for engine in service.engines.status()]
        html_table(["Engine", "Kind", "Address", "Calls", "Finding"], rows, numeric=(3,))
    with right.container(border=True, key="panel-attention", height="stretch"):
        kit.section("Needs attention", "calls since the start")
        inferred = live["by"]["identity_source"].get("inferred", 0)
        facets = dict(service.pool.stats.facets(View(), ["status"])["status"])
        rows = [
            attention_row("Dropped", live["n_dropped"], "answered, not captured", "bad"),
            attention_row("Errors", live["n_errors"], "engine or request failed", "bad", View({"status": ["error"]})),
            attention_row(
                "Mismatched",
                facets.get("mismatch", 0),
                "token counts disagree (whole pool)",
                "bad",
                View({"status": ["mismatch"]}),
            ),
            attention_row(
                "Aborted", live["n_aborted"], "the client disconnected", "warn", View({"status": ["aborted"]})
            ),
            attention_row(
                "Inferred",
                inferred,
                "trajectory inferred by shared prefix",
                "warn",
                View({"identity_source": ["inferred"]}),
            ),
        ]
        html_table(["", "Calls", "Meaning"], rows, numeric=(1,))


@kit.live(2.0)
def feedback() -> None:
    """Feedback of people and services on responses, newest first."""
    pool = state.service().pool
    counts = pool.feedback.counts()
    with st.container(border=True, key="panel-feedback"):
        kit.section("Feedback", "of people and services on responses")
        if not counts["n_feedback"]:
            st.caption("None yet. Send thumbs, scores, corrections or comments to /api/v1/feedback, at any time.")
            return
        left, right = st.columns([1, 3], gap="medium")
        with left:
            bars(sorted(counts["by_kind"].items()))
            if counts["n_pending"]:
                st.caption(f"Not matched to a call yet: {kit.count(counts['n_pending'])}")
        with right:
            newest = pool.feedback.find(limit=N_FEEDBACK)
            now = state.service().clock()
            html_table(
                ["When", "Kind", "Value", "By", "About"], [feedback_row(item, now) for item in newest], numeric=()
            )


def feedback_row(item: dict[str, Any], now: float) -> tuple[str, ...]:
    """One feedback entry as table cells; its step or trajectory is a link."""
    value = item["value"] if item["note"] is None else f"{item['value']}: {item['note']}"
    if item["step_uid"] is not None:
        about = link(item["step_uid"], step=item["step_uid"])
    elif item["trajectory_uid"] is not None:
        about = link(item["trajectory_uid"], trajectory=item["trajectory_uid"])
    else:
        about = f"waiting for {kit.escape(' '.join(map(str, item['target'].values())))}"
    return (
        kit.escape(kit.ago(item["received_at"], now)),
        dot_label(item["kind"], TONES.get(str(item["value"]), "")),
        kit.escape(str(value)[:FEEDBACK_CHARS]),
        kit.escape(item["author"]),
        about,
    )


def link(label: str, **params: object) -> str:
    """A link to Inspect, as HTML."""
    return f'<a href="inspect?{kit.escape(urlencode(params, doseq=True))}" target="_self">{kit.escape(label)}</a>'


def engine_row(engine: dict[str, Any]) -> tuple[str, ...]:
    """One engine as table cells."""
    return (
        dot_label(engine["name"], ENGINE_TONE[engine["ok"]]),
        kit.escape(engine["kind"]),
        f"<code>{kit.escape(engine['base_url'] or 'starts at the first call')}</code>",
        kit.count(engine["n_calls"]),
        f'<span class="q">{kit.escape(engine_state(engine))}</span>',
    )


def attention_row(label: str, n: int, meaning: str, tone: Tone, view: View | None = None) -> tuple[str, str, str]:
    """One row of problems; grey when the count is 0. The count links to the steps of the view."""
    count = kit.count(n)
    if n and view is not None:
        count = link(count, level="steps", **state.view_to_query(view))
    return dot_label(label, tone if n else "good"), count, f'<span class="q">{kit.escape(meaning)}</span>'


def page() -> None:
    page_header("collect")
    traffic()
    with kit.error_boundary():
        follow = controls()
        kit.live(1.0 if follow else None)(newest)()
    breakdown()
    health()
    feedback()
    with kit.error_boundary():
        connect_panel()


page()
