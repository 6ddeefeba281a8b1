"""Login: pages that can be reached from the network ask for the admin key."""

from __future__ import annotations

import streamlit as st

from core.errors import TooManyAttempts
from core.gateway.access.keys import hash_key, is_studio_key
from studio import lifecycle
from studio.access import is_exposed

ADMITTED = "admitted_by"
"""Session state: the hash of the accepted key, so that a changed key asks again."""


def admitted() -> bool:
    """Whether this browser session may see the pages; if not, the login form or the reason has been drawn."""
    address = st.context.ip_address
    if not is_exposed(st.context.headers.get("host"), address):
        return True
    key = lifecycle.admin_key()
    if key is None:
        st.error(
            "These pages can be reached from the network and no admin key is set. Set `CLAW_STUDIO_API_KEY` and "
            "restart the studio, or let it listen on 127.0.0.1.",
            icon=":material/lock:",
        )
        return False
    if st.session_state.get(ADMITTED) == hash_key(key):
        return True
    _ask(key, address or "")
    return False


def _ask(key: str, address: str) -> None:
    with st.form("admin-key", width=420):
        st.markdown("**Admin key**")
        entered = st.text_input("Admin key", type="password", label_visibility="collapsed", autocomplete="off")
        sent = st.form_submit_button("Open the studio", type="primary")
    st.caption("The value of `CLAW_STUDIO_API_KEY`. It is kept until this browser tab is closed or reloaded.")
    if not sent or not entered:
        return
    try:
        lifecycle.wrong_keys.check(address)
    except TooManyAttempts as error:
        lifecycle.count_refusal(error.type)
        st.error(f"{error.message}: {error.hint}.")
        return
    if is_studio_key(entered.strip(), key):
        st.session_state[ADMITTED] = hash_key(key)
        st.rerun()
    lifecycle.wrong_keys.count_failure(address, hash_key(entered))
    lifecycle.count_refusal("unauthorized")
    st.error("This is not the admin key.")
