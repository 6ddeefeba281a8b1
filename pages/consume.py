"""The Consume page: batches of trainers, their staleness and metrics; and the recipe of the next fetch."""

from __future__ import annotations

from typing import Any

import streamlit as st

from core.batch.leases import DEFAULT_CHANNEL
from core.batch.pace import pace, syncs
from core.errors import NotFound
from studio import kit, state
from studio.charts import consume as charts
from studio.frame.header import page_header
from studio.kit.url_choices import segmented_choice
from studio.widgets.consume import batch_view
from studio.widgets.consume.batch_view import one_batch
from studio.widgets.consume.next_fetch import next_fetch, ready_groups
from studio.widgets.consume.tables import SELECT, open_clicked_batch, tables

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


page_header("consume")
consume_page()
