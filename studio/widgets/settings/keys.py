"""Session keys on the Settings page: a list, and a button that revokes each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import streamlit as st

from core.gateway.access.keys import key_id
from core.service import Service
from studio import kit, state

SHOWN = 200
"""Keys in the table, the newest first."""


def show_keys(service: Service) -> None:
    """The table of keys; the button revokes those that are selected."""
    rows = list(reversed(service.pool.journal.sessions()))
    n_valid = sum(is_valid(row, service.clock()) for row in rows)
    kit.section(
        "Session keys", f"{kit.counted(n_valid, 'key')} in force. A key is shown in full only when it is created."
    )
    if not rows:
        st.html(kit.caption_html("No key yet. Overview creates one when you connect an agent."))
        return
    shown = rows[:SHOWN]
    config = st.column_config
    chosen = st.dataframe(
        [line(row, service.clock()) for row in shown],
        hide_index=True,
        on_select="rerun",
        selection_mode="multi-row",
        row_height=29,
        height=min(330, 38 + 29 * len(shown)),
        # Positions are remembered by the key, so another list has another key.
        key=f"keys-{len(rows)}-{n_valid}",
        column_config={
            "key": config.TextColumn("Key", width=120),
            "state": config.TextColumn("State", width=74),
            "agent": config.TextColumn("Agent", width=88),
            "trajectory": config.TextColumn("Trajectory", width=146),
            "channel": config.TextColumn("Channel", width=66),
            "made": config.DatetimeColumn("Created", width=114, format="MMM D, HH:mm:ss"),
        },
    )["selection"]["rows"]
    valid = [shown[place] for place in chosen if place < len(shown) and is_valid(shown[place], service.clock())]
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(f"Revoke {kit.counted(len(valid), 'key')}", icon=":material/key_off:", disabled=not valid):
            revoke(service, [key_id(row["key_sha256"]) for row in valid])
        st.caption(
            "Calls with a revoked key are answered with 401. This can't be undone. Create a new key on Overview."
        )


def revoke(service: Service, names: list[str]) -> None:
    """Revoke keys by id; each is on disk before it takes effect."""
    for name in names:
        service.revoke_keys(name)
    st.toast(f"{kit.counted(len(names), 'key')} revoked")
    service.ingest.catch_up(5.0)
    st.rerun()


def line(row: dict[str, Any], now: float) -> dict[str, Any]:
    """A row of the table."""
    expires = (row["limits"] or {}).get("expires_at")
    over = expires is not None and now >= expires
    return {
        "key": key_id(row["key_sha256"]),
        "state": "revoked" if row["revoked_at"] is not None else "expired" if over else "in force",
        "agent": row["agent"],
        "trajectory": kit.short_uid(row["trajectory_uid"], 19),
        "channel": row["channel"],
        "made": datetime.fromtimestamp(row["at"], UTC),
    }


def is_valid(row: dict[str, Any], now: float) -> bool:
    """Whether calls with the key are answered."""
    return bool(line(row, now)["state"] == "in force")


def reviewer_name() -> None:
    """The name under which labels of this browser are stored."""
    kit.section("Your name", "stored as the author of labels set in this browser")
    name = st.text_input("Reviewer name", state.author(), max_chars=80, label_visibility="collapsed")
    if name.strip() and name.strip() != state.author():
        state.set_author(name.strip())
        st.toast(f"Labels are now stored as {kit.escape_markdown(name.strip())}")
        st.rerun()
