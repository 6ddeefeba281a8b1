"""The foot of the sidebar: counts of the pool and its folder."""

from __future__ import annotations

import streamlit as st

from studio import state
from studio.kit.callouts import error_boundary, live, refresh_interval
from studio.kit.format import compact, count, escape


def pool_summary() -> None:
    """Counts of the pool, refreshed while the page is open."""
    with error_boundary():
        live(refresh_interval(state.service().pool.steps.count(), 3.0))(_summary)()


def _summary() -> None:
    service = state.service()
    stats = service.pool.stats.totals()
    rows = (
        ("Steps", count(stats.get("n_steps"))),
        ("Trajectories", count(stats.get("n_trajectories"))),
        ("Groups", count(stats.get("n_groups"))),
        ("Tokens", compact(stats.get("n_tokens"))),
    )
    cells = "".join(f"<dt>{escape(label)}</dt><dd>{escape(value)}</dd>" for label, value in rows)
    folder = escape(service.settings.data_dir)
    st.html(
        f'<div class="cs-foot"><div class="t">Pool</div><dl>{cells}</dl>'
        f'<div class="p" title="{folder}"><bdi>{folder}</bdi></div></div>'
    )
