"""Tables of Consume: batches, trainer metrics, consumers, off-policy differences and weight syncs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from core.batch.offpolicy import by_staleness
from core.batch.pace import runs_of, syncs
from studio import kit, state
from studio.charts import consume as charts
from studio.kit.data_tables import page_from_query, pagination
from studio.kit.html_tables import dot_label, html_table
from studio.kit.url_choices import segmented_choice
from studio.widgets.consume import batch_view
from studio.widgets.plans.batches import recipe_name

TABS = {
    "batches": "Batches",
    "metrics": "Trainer metrics",
    "consumers": "Consumers",
    "off-policy": "Off-policy",
    "syncs": "Weight syncs",
}
BATCH_COLUMNS = ("batch", "state", "consumer", "groups", "steps", "tokens", "recipe", "stale", "reward", "leased")
SELECT: dict[str, Any] = {"on_select": "rerun", "selection_mode": "points"}


def open_clicked_batch(event: Any) -> None:
    """Open the batch of a clicked point."""
    points = event["selection"]["points"] if event else []
    if points and points[0].get("customdata"):
        state.goto("consume", batch=points[0]["customdata"][0])


def tables(channel: str) -> None:
    """Metrics, batches, consumers and syncs."""
    pool = state.service().pool
    total = sum(one["n_batches"] for one in pool.consumption.consumers(channel=channel))
    if not total:
        return
    tab = segmented_choice("Table", TABS, "tab")
    if tab == "consumers":
        consumer_table(channel)
    elif tab == "off-policy":
        off_policy(channel)
    elif tab == "syncs":
        sync_table()
    else:
        page = min(page_from_query(), -(-total // batch_view.BATCHES))
        rows = pool.consumption.batches(channel=channel, limit=batch_view.BATCHES * page)[
            batch_view.BATCHES * (page - 1) :
        ]
        {"batches": batch_table, "metrics": metric_charts}[tab](rows)
        if total > batch_view.BATCHES:
            pagination(total, key=f"consume-{tab}", size=batch_view.BATCHES, noun="batches, newest first")


def batch_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """One row per batch; a click opens it."""
    config = st.column_config
    event = st.dataframe(
        [
            {
                "batch": kit.short_uid(row["batch_uid"]),
                "state": row["state"],
                "consumer": row["consumer"],
                "groups": row["n_groups"],
                "steps": row["n_steps"],
                "tokens": row["n_tokens"],
                "recipe": recipe_name(row),
                "policy": row["policy_version"],
                "stale": row["staleness_max"],
                "reward": row["reward_mean"],
                "update": row["update_index"],
                "leased": kit.ago(row["leased_at"], state.service().clock()),
            }
            for row in rows
        ],
        hide_index=True,
        height=min(420, 38 + 29 * len(rows)),
        row_height=29,
        placeholder="",
        on_select="rerun",
        selection_mode="single-cell",
        key=f"batch-table-{rows[0]['batch_uid']}",
        # What fits a page that is 1280 pixels wide; the table's own menu shows the others.
        column_order=BATCH_COLUMNS,
        column_config={
            "batch": config.TextColumn("Batch", width=102),
            "state": config.TextColumn("State", width=62),
            "consumer": config.TextColumn("Consumer", width=76),
            "groups": config.NumberColumn("Groups", width=52),
            "steps": config.NumberColumn("Steps", width=52, format="localized"),
            "tokens": config.NumberColumn("Tokens", width=72, format="localized"),
            "recipe": config.TextColumn("Recipe", width=74),
            "policy": config.NumberColumn("Policy", width=48),
            "stale": config.NumberColumn(
                "Staleness", width=70, help="Versions behind, oldest step; below 0: a later version sampled it"
            ),
            "reward": config.NumberColumn("Reward", width=56, format="%.3g", help="Mean over steps"),
            "update": config.NumberColumn("Update", width=54),
            "leased": config.TextColumn("Leased", width=82),
        },
    )
    cells = event["selection"]["cells"]
    if cells:
        state.goto("consume", batch=rows[cells[0][0]]["batch_uid"])


def metric_charts(rows: Sequence[Mapping[str, Any]]) -> None:
    """A chart per metric that trainers posted."""
    consumers = {row["batch_uid"]: row["consumer"] for row in rows}
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in state.service().pool.batches.metrics():
        if row["batch_uid"] in consumers:
            by_name[row["name"]].append({**row, "consumer": consumers[row["batch_uid"]]})
    if not by_name:
        kit.empty_state(
            "No metrics yet",
            "POST /api/v1/batches/{uid}/ack takes metrics: loss, kl, entropy, ratio, clip_fraction, ...",
            icon="monitoring",
        )
    columns = st.columns(3, gap="medium")
    for place, (name, values) in enumerate(by_name.items()):
        with columns[place % 3]:
            kit.section(name)
            open_clicked_batch(
                kit.plot(charts.metric(runs_of(values), name, height=180), key=f"metric-{name}", alt=name, **SELECT)
            )


def consumer_table(channel: str) -> None:
    """Table of consumers."""
    consumers = state.service().pool.consumption.consumers(channel=channel)
    html_table(
        ["Consumer", "Batches", "Leased", "Consumed", "Released", "Expired", "Groups", "Steps", "Tokens", "Last seen"],
        [
            (
                kit.escape(one["consumer"]),
                *(kit.count(one[name]) for name in ("n_batches", "n_leased", "n_acked", "n_released")),
                dot_label(kit.count(one["n_expired"]), "warn" if one["n_expired"] else ""),
                *(kit.count(one[name]) for name in ("n_groups", "n_steps")),
                kit.compact(one["n_tokens"]),
                kit.ago(one["seen_at"], state.service().clock()),
            )
            for one in consumers
        ],
    )


def sync_table() -> None:
    """Weight syncs, newest first."""
    reported = syncs(state.service().pool.journal.policy_events())
    if not reported:
        kit.empty_state(
            "No weight sync was reported", "POST /api/v1/policy with sync_started and sync_finished.", icon="sync"
        )
        return
    first = (min(page_from_query(), -(-len(reported) // batch_view.SYNC_ROWS)) - 1) * batch_view.SYNC_ROWS
    html_table(
        ["Version", "Started", "Finished", "Took"],
        [
            (
                kit.count(sync.version),
                kit.ago(sync.started_at, state.service().clock()),
                kit.ago(sync.finished_at, state.service().clock()),
                kit.seconds(sync.duration_s)
                if sync.duration_s is not None
                else dot_label("not finished", "warn")
                if sync.finished_at is None
                else "start not reported",
            )
            for sync in reported[::-1][first : first + batch_view.SYNC_ROWS]
        ],
    )
    if len(reported) > batch_view.SYNC_ROWS:
        pagination(len(reported), key="syncs", size=batch_view.SYNC_ROWS, noun="weight syncs, newest first")


def off_policy(channel: str) -> None:
    """Captured against recomputed log-probs, by the version that sampled."""
    rows = state.service().pool.consumption.differences(channel=channel)
    if not rows:
        kit.empty_state(
            "No log-probs were compared yet",
            "A trainer reports them with its acknowledgement: batch.compare(...).step_metrics() in core.trainer.",
            icon="difference",
        )
        return
    column = segmented_choice("Difference", charts.DIFFERENCES, "difference")
    kit.section(
        "Captured against recomputed log-probs",
        "near 0 at the version that sampled; it grows with the versions in between",
    )
    event = kit.plot(
        charts.differences(rows, column, height=260), key=f"difference-{column}", alt="Log-prob differences", **SELECT
    )
    open_clicked_batch(event)
    html_table(
        ["Versions behind", "Batches", "Tokens", "Mean", "Largest", "KL per token"],
        [
            (
                kit.count(one.staleness),
                kit.count(one.n_batches),
                kit.compact(one.n_tokens),
                *(f"{value:.3g}" for value in (one.mean, one.greatest, one.kl)),
            )
            for one in by_staleness(rows)
        ],
    )
