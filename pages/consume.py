"""The Consume page: batches of trainers, their staleness and metrics; and the recipe of the next fetch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st

from core.batch.funnel import Excluded
from core.batch.leases import DEFAULT_CHANNEL, Fetch
from core.batch.offpolicy import by_staleness
from core.batch.pace import pace, runs_of, syncs
from core.batch.recipe import Recipe, difference, parse_recipe
from core.errors import NotFound, StudioError
from core.types import View
from studio import kit, state
from studio.charts import consume as charts
from studio.frame.header import page_header
from studio.kit.data_tables import page_from_query, pagination
from studio.kit.html_tables import dot_label, html_table
from studio.kit.url_choices import segmented_choice
from studio.widgets.consume import batch_view
from studio.widgets.consume.batch_view import one_batch
from studio.widgets.plans.batches import recipe_name
from studio.widgets.plans.current_plan import cached_answer
from studio.widgets.plans.recipe_editor import recipe_editor
from studio.widgets.plans.recipe_query import query_fields

TABS = {
    "batches": "Batches",
    "metrics": "Trainer metrics",
    "consumers": "Consumers",
    "off-policy": "Off-policy",
    "syncs": "Weight syncs",
}
SNIPPET = """from core.trainer import Trainer

with Trainer("{base_url}", consumer="trainer-1") as trainer:
    for batch in trainer.batches():                  # fetches the next while you train
        loss = update(batch.steps)                    # ids, log-probs, advantages of each step
        batch.ack(update=batch.number, metrics={{"loss": loss}})
"""


def consume_page() -> None:
    """One batch, or all batches beside the recipe of the next."""
    uid = state.query("batch")
    if uid is not None:
        try:
            one_batch(uid)
        except NotFound as error:
            kit.show_error(error)
            if st.button("All batches", icon=":material/arrow_back:", key="back"):
                state.set_query(batch=None)
                st.rerun()
        return
    channel = channel_choice()
    left, right = st.columns([9, 3.2], gap="medium")
    with left, kit.error_boundary():
        kit.live(kit.refresh_interval(state.service().pool.stats.totals()["n_steps"], 3.0))(overview)(channel)
        tables(channel)
    with right, kit.error_boundary():
        next_fetch(channel)


def channel_choice() -> str:
    """The channel in the URL; ``train`` by default."""
    pool = state.service().pool
    known = list(dict.fromkeys([DEFAULT_CHANNEL, *pool.stats.totals()["by_channel"], *pool.recipes.all_active()]))
    return segmented_choice("Channel", {name: kit.escape_markdown(name) for name in known}, "channel")


def overview(channel: str) -> None:
    """Figures and charts, which refresh while the page is open."""
    service = state.service()
    pool = service.pool
    pool.batches.expire()
    rows = pool.consumption.batches(channel=channel, limit=batch_view.BATCHES)
    ready, wanted = ready_groups(channel)
    offer_to_end_sync(service)
    going = pace(rows, service.clock())
    starves = going.starves_in_s(ready)
    consumers = pool.consumption.consumers(channel=channel)
    total = {name: sum(one[name] for one in consumers) for name in ("n_batches", "n_leased", "n_acked", "n_steps")}
    held = [row for row in rows if row["state"] == "leased"]
    held_steps = f"{kit.count(sum(row['n_steps'] for row in held))} steps" if len(held) == total["n_leased"] else ""
    rate = going.groups_per_s
    kit.figures(
        [
            kit.Figure(
                "Groups to fetch",
                kit.count(ready),
                sub=f"{kit.count(wanted)} per batch" if wanted else "any number per batch",
                tone="bad" if ready < (wanted or 1) else "",
                help="Groups that a fetch with the channel's recipe would lease now",
            ),
            kit.Figure(
                "Runs out in",
                kit.seconds(starves) if starves is not None else kit.DASH,
                sub=f"{rate * 60:.3g} groups per minute" if rate is not None else "nothing consumed recently",
                help="How long these groups last at the rate of the last ten minutes",
            ),
            kit.Figure("Leased", kit.count(total["n_leased"]), sub=held_steps, help="Batches leased to a consumer"),
            kit.Figure(
                "Consumed",
                kit.count(total["n_acked"]),
                sub=f"{kit.count(total['n_steps'])} steps",
                help="Batches that were acknowledged",
            ),
            kit.Figure(
                "Policy version", kit.count(service.policy.version), sub=sync_text(service), help="policy version"
            ),
        ],
        dense=True,
    )
    if not rows:
        kit.empty_state(
            "No batch was fetched yet",
            "Trainers fetch with POST /api/v1/batches/fetch, or with the client below.",
            icon="outbox",
        )
        st.code(SNIPPET.format(base_url=service.base_url), language="python")
        return
    newest = (
        f"the newest {kit.count(len(rows))} of {kit.count(total['n_batches'])}, "
        if len(rows) < total["n_batches"]
        else ""
    )
    left, right = st.columns(2, gap="medium")
    done = syncs(pool.journal.policy_events())
    with left:
        kit.section("Batches", f"{newest}one dot each; click one to open it")
        open_clicked_batch(
            kit.plot(charts.batches_over_time(rows, done), key="batches", alt="Batches over time", **SELECT)
        )
    with right:
        kit.section("Staleness", "versions behind the current policy when fetched")
        open_clicked_batch(kit.plot(charts.staleness(rows), key="staleness", alt="Staleness of each batch", **SELECT))


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


SELECT: dict[str, Any] = {"on_select": "rerun", "selection_mode": "points"}


def open_clicked_batch(event: Any) -> None:
    """Open the batch of a clicked point."""
    points = event["selection"]["points"] if event else []
    if points and points[0].get("customdata"):
        state.goto("consume", batch=points[0]["customdata"][0])


def ready_groups(channel: str) -> tuple[int, int | None]:
    """(groups ready for the channel's recipe, groups per batch or None)."""
    recipe = state.service().leases.choose(Fetch("studio", channel=channel)).recipe
    return fetchable(recipe.model_copy(update={"batch_size": None})).counts["n_groups"], recipe.batch_size


@dataclass(frozen=True, slots=True)
class Fetchable:
    """What a new consumer's fetch would get: counts, and exclusions."""

    counts: Mapping[str, int]
    excluded: Sequence[Excluded]


def fetchable(recipe: Recipe) -> Fetchable:
    """What a fetch with this recipe would lease now; cached until the pool is written to."""

    def ask() -> Fetchable:
        plan = state.service().leases.preview(Fetch("studio", recipe=recipe.to_json()))
        return Fetchable(plan.counts, plan.excluded)

    return cached_answer("fetch", View(), recipe, None, ask)


def offer_to_end_sync(service: Any) -> None:
    """An unfinished weight sync, with buttons that end it in case the trainer failed."""
    sync = service.policy.sync_json()
    if sync is None:
        return
    before, after = service.policy.version, sync["version"]
    begun = f"The sync to version {after} began {kit.seconds(sync['elapsed_s'])} ago"
    if sync["state"] == "running":
        st.warning(f"{begun}. Calls wait for it, {kit.seconds(sync['timeout_s'])} at most.", icon=":material/sync:")
    else:
        st.warning(
            f"{begun} and was not finished. Calls continue. It is unknown which weights sample them, so they are "
            "recorded with both versions.",
            icon=":material/sync_problem:",
        )
    left, right = st.columns(2)
    stays = "Keep the old weights" if before is None else f"Keep the old weights: version {before}"
    if left.button(stays, key="end-sync", help="Ends the sync; calls continue at once", width="stretch"):
        service.end_sync()
        st.rerun()
    if right.button(f"The new weights are loaded: version {after}", key="finish-sync", width="stretch"):
        service.finish_sync(after)
        st.rerun()


def sync_text(service: Any) -> str:
    """The latest weight sync as text."""
    if service.policy.syncing:
        return "weight sync in progress"
    if service.policy.sync_expired:
        return "a weight sync was not finished"
    finished = [sync for sync in syncs(service.pool.journal.policy_events()) if sync.finished_at is not None]
    if not finished:
        return "no weight sync reported"
    took = finished[-1].duration_s
    if took is not None:
        return f"last sync took {kit.seconds(took)}"
    return f"last sync finished {kit.ago(finished[-1].finished_at, service.clock())}"


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
        column_config={
            "batch": config.TextColumn("Batch", width=98),
            "state": config.TextColumn("State", width=62),
            "consumer": config.TextColumn("Consumer", width=84),
            "groups": config.NumberColumn("Groups", width=52),
            "steps": config.NumberColumn("Steps", width=52, format="localized"),
            "tokens": config.NumberColumn("Tokens", width=82, format="localized"),
            "recipe": config.TextColumn("Recipe", width=74),
            "policy": config.NumberColumn("Policy", width=48),
            "stale": config.NumberColumn("Oldest", width=52, help="Versions behind, oldest step"),
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
        ["Consumer", "Batches", "Leased", "Consumed", "Released", "Expired", "Groups", "Steps", "Tokens", "Seen"],
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


def next_fetch(channel: str) -> None:
    """The channel's recipe, what it would lease now, and the editor for its next version."""
    service = state.service()
    chosen = service.leases.choose(Fetch("studio", channel=channel))
    title = f"{chosen.name} v{chosen.version}" if chosen.name else "no active recipe; defaults are used"
    kit.section("Next fetch", title)
    edited = edited_recipe(chosen.recipe)
    now = fetchable(chosen.recipe)
    then = now if edited == chosen.recipe else fetchable(edited)
    effect(now, then, edited.batch_size)
    changes = difference(chosen.recipe.to_json(), edited.to_json())
    if changes:
        html_table(
            ["Field", "Now", "Then"],
            [(f"<code>{kit.escape(one['field'])}</code>", text_of(one["a"]), text_of(one["b"])) for one in changes],
        )
        with st.form("activate", border=False):
            name = st.text_input("Recipe name", chosen.name or "default")
            if st.form_submit_button("Use from the next fetch on", type="primary", width="stretch"):
                version = service.pool.recipes.save(name, edited.to_json(), author=state.author())
                service.pool.recipes.activate(channel, name.strip(), version, author=state.author())
                state.set_query(recipe=None)
                st.rerun()
        if st.button("Discard changes", width="stretch"):
            state.set_query(recipe=None)
            st.rerun()
    recipe_editor(edited, [channel], base=chosen.recipe)


def text_of(value: Any) -> str:
    """A recipe value as a table shows it."""
    return kit.DASH if value is None else kit.escape(str(value))


def edited_recipe(active: Recipe) -> Recipe:
    """The active recipe with the URL's changes. Invalid changes show an error and are ignored."""
    try:
        return active if state.query("recipe") is None else parse_recipe({**active.to_json(), **query_fields()})
    except StudioError as error:
        kit.show_error(error)
        if st.button("Discard the changes", width="stretch"):
            state.set_query(recipe=None)
            st.rerun()
        return active


EFFECTS = (("n_groups", "Groups"), ("n_trajectories", "Trajectories"), ("n_steps", "Steps"), ("n_tokens", "Tokens"))


def effect(now: Fetchable, then: Fetchable, batch_size: int | None) -> None:
    """What a fetch would get now, and with the changes."""
    cells = []
    for name, label in EFFECTS:
        before, after = now.counts[name], then.counts[name]
        sub = f"{after - before:+,} against now" if before != after else ""
        cells.append(kit.Figure(label, kit.count(after), sub=sub, tone="warn" if after < before else ""))
    kit.figures(cells, dense=True)
    if then.counts["n_groups"] < (batch_size or 1):
        reasons = sorted(then.excluded, key=lambda item: -item.n_groups)[:3]
        st.caption(
            "Not enough for a batch. " + "; ".join(f"{item.label}: {kit.count(item.n_groups)}" for item in reasons)
        )


page_header("consume")
consume_page()
