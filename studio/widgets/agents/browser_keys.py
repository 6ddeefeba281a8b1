"""The session key of each agent in this browser: a reload or another tab shows the same key, until a new one is made.

The keys are held in memory, since the pool stores only their hashes. After a restart of the studio new ones are made.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import streamlit as st

from studio import state
from studio.access import BROWSER_COOKIE

MOST = 1000
"""Keys that are held at once; the one that was used longest ago goes first."""

Place = tuple[str, str, str]
"""(data folder, browser, agent)."""

_sessions: OrderedDict[Place, dict[str, Any]] = OrderedDict()
_lock = threading.Lock()


def session_for(agent: str) -> dict[str, Any]:
    """The session of this agent in this browser, made when it is first shown or when its key no longer works."""
    service = state.service()
    with _lock:
        place = _place(agent)
        session = _sessions.get(place)
        if session is None or service.api_deps.keys.resolve(session["api_key"]) is None:
            session = _sessions[place] = service.mint_session(agent=agent)
        _sessions.move_to_end(place)
        while len(_sessions) > MOST:
            _sessions.popitem(last=False)
    return session


def forget(agent: str) -> None:
    """Show another key from now on. The old one goes on working for an agent that has it."""
    with _lock:
        _sessions.pop(_place(agent), None)


def _place(agent: str) -> Place:
    browser = st.context.cookies.get(BROWSER_COOKIE)
    if not isinstance(browser, str):
        # A browser without cookies, or Streamlit's test runner, which has none: one key per visit.
        browser = st.session_state.setdefault("browser", f"visit-{id(st.session_state)}")
    return str(state.service().settings.data_dir), browser, agent
