"""The panel that connects an agent: snippets with a new session key, and a status line for its first call."""

from __future__ import annotations

import time
from typing import Any

import streamlit as st

from core.types import View
from studio import kit, state
from studio.kit.figures import Tone
from studio.kit.html_tables import dot_label
from studio.nav import PAGES
from studio.widgets.agents import browser_keys, snippets


def connect_panel() -> None:
    """Draw the panel: choice of agent, its snippets, its session key, and whether it has called."""
    kit.section("Connect an agent", "the session key identifies the trajectory of its calls")
    agents = {agent.label: agent for agent in snippets.AGENTS.values()}
    with st.container(border=True, key="panel-connect"):
        chosen = st.segmented_control(
            "Agent",
            list(agents),
            default=next(iter(agents)),
            required=True,
            key="connect",
            bind="query-params",
            label_visibility="collapsed",
        )
        agent = agents[chosen]
        session = browser_keys.session_for(agent.key)
        lines, facts = st.columns([5, 4], gap="medium")
        with lines:
            show_snippets(agent, session)
            untrained_note()
        with facts:
            first_call(session["trajectory_uid"])
            kit.facts(
                [
                    ("Base URL", session["base_url"]),
                    ("Session key", session["api_key"]),
                    ("trajectory", session["trajectory_uid"]),
                    ("channel", session["channel"]),
                    ("Dialect", agent.dialect.path),
                ]
            )
            if st.button("New key", icon=":material/key:", help="A new key starts a new trajectory."):
                browser_keys.forget(agent.key)
                st.rerun()


def show_snippets(agent: snippets.Agent, session: dict[str, Any]) -> None:
    """Draw the snippets of an agent."""
    service = state.service()
    filled = snippets.Session(service.base_url, session["api_key"], snippets.model_for(service.settings.engine))
    if agent.install:
        st.caption(f"Install it with `{agent.install}`")
    for snippet in agent.write(filled):
        st.caption(snippet.where)
        st.code(snippet.text, language=snippet.language)


def untrained_note() -> None:
    """Says that the embedded model's answers mean nothing, where calls go to it."""
    settings = state.service().settings
    if settings.engine == "local" and settings.local_model_dir is None:
        st.html(
            '<div class="cs-note"><b>The embedded model is untrained.</b> Its weights are random, so its answers are '
            "random words: enough to test capture. For real answers set <code>CLAW_STUDIO_ENGINE</code> to an "
            "OpenAI-compatible address and restart the studio.</div>"
        )


@kit.live(1.0)
def first_call(trajectory_uid: str) -> None:
    """Whether a call with this session key has arrived, and a link to the newest."""
    steps = state.service().pool.steps
    view = View({"trajectory_uid": trajectory_uid})
    # Counted first: rows are read through libraries that take longer to import than an empty pool's page to draw.
    if steps.count(view) == 0:
        st.html(f'<div class="cs-wait">{dot_label("Waiting for the first call with this key", "")}</div>')
        return
    step = steps.page(view, order="created_at desc", limit=1).to_pylist()[0]
    tone: Tone = "good" if step["status"] == "ok" else "bad"
    when = kit.ago(step["created_at"], time.time())
    st.html(
        f'<div class="cs-wait {tone}">{dot_label("First call seen", tone)} <span>newest {kit.escape(when)}</span></div>'
    )
    # A link, which the browser follows: a button's click would end this fragment while it redraws itself.
    st.page_link(
        str(PAGES["inspect"].path),
        label="Inspect it",
        icon=":material/frame_inspect:",
        query_params={"step": step["step_uid"]},
    )
