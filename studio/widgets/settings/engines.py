"""Policy engines on the Settings page: a row each, with buttons that test, pause and remove; a form that adds one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from core.engine_changes import EngineTest
from core.errors import StudioError
from core.service import Service
from studio import kit
from studio.frame.status import engine_state
from studio.kit.figures import Tone
from studio.kit.html_tables import dot_label

TONES: dict[bool | None, Tone] = {True: "good", False: "bad", None: ""}
TESTS = "engine-tests"
"""Session state: engine -> its last test."""
FAILURE = "engine-failure"
"""Session state: why the last change failed; shown once."""


def show_engines(service: Service) -> None:
    """The engines with their buttons, and the form."""
    kit.section("Policy engines", "A call goes to the engine whose model pattern matches, else to the default.")
    failure = st.session_state.pop(FAILURE, None)
    if failure is not None:
        kit.show_error(failure)
    for engine in service.engines.status():
        engine_row(service, engine)
    add_form(service)


def engine_row(service: Service, engine: dict[str, Any]) -> None:
    """One engine, and what can be done with it."""
    name, paused = str(engine["name"]), bool(engine["paused"])
    changes = service.engine_changes
    with st.container(border=True, key=f"engine-{name}", gap="xsmall"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.html(row_html(engine))
            if st.button("Test", icon=":material/network_check:", key=f"test-{name}", help="Ask for one short answer"):
                with st.spinner(f"Asking {kit.escape_markdown(name)}"):
                    tests = st.session_state.setdefault(TESTS, {})
                    attempt(lambda: tests.__setitem__(name, changes.test(name)))
            st.button(
                "Resume" if paused else "Pause",
                icon=":material/play_arrow:" if paused else ":material/pause:",
                key=f"pause-{name}",
                help="New calls get 503 with Retry-After, or go to other engines of the same models"
                if not paused
                else "Take new calls again",
                on_click=attempt,
                args=(lambda: changes.pause(name, not paused),),
            )
            if name in changes.added:
                st.button(
                    "Remove",
                    icon=":material/delete:",
                    key=f"remove-{name}",
                    on_click=attempt,
                    args=(lambda: changes.remove(name),),
                )
        test = st.session_state.get(TESTS, {}).get(name)
        if test is not None:
            st.html(test_html(test))


def attempt(change: Callable[[], Any]) -> None:
    """Make a change; a callback has no place to draw an error, so it is kept for the page."""
    try:
        change()
    except StudioError as error:
        st.session_state[FAILURE] = error


def row_html(engine: dict[str, Any]) -> str:
    """Name, address, models and state of an engine, as HTML."""
    name = str(engine["name"]) + (" (default)" if engine["default"] else "")
    tone: Tone = "warn" if engine["paused"] else TONES[engine["ok"]]
    tags = " ".join(f'<span class="cs-tag">{kit.escape(glob)}</span>' for glob in engine["models"])
    paused = '<span class="cs-tag warn">paused</span> ' if engine["paused"] else ""
    known = engine["base_url"]
    address = (
        f'<code class="cs-uid">{kit.escape(known)}</code>'
        if known
        else '<span class="cs-quiet">starts at the first call</span>'
    )
    return (
        f"<div><b>{dot_label(name, tone)}</b> {paused}{address} {tags}"
        f'<div class="cs-quiet">{kit.escape(engine["kind"])} · {kit.escape(engine_state(engine))}</div></div>'
    )


def test_html(test: EngineTest) -> str:
    """The result of a test, as HTML."""
    tone: Tone = "bad" if not test.ok else "good" if test.exact else "warn"
    text = f"{test.message} in {kit.seconds(test.seconds)}" if test.ok else test.message
    return f'<div class="cs-note" role="status">{dot_label("Test", tone)} {kit.escape(text)}</div>'


def add_form(service: Service) -> None:
    """Adds an engine that takes calls at once."""
    with (
        st.expander("Add an engine", icon=":material/add:", key="engine-add-panel"),
        st.form("engine-add", border=False),
    ):
        left, right = st.columns(2)
        left.text_input("Name", placeholder="qwen-a", key="engine-add-name")
        right.text_input(
            "Address", placeholder="http://127.0.0.1:8000/v1 or litellm:provider/model", key="engine-add-address"
        )
        left.text_input(
            "Models",
            placeholder="qwen*, my-model",
            key="engine-add-models",
            help="Names or patterns, separated by commas: calls that name one of them go to this engine",
        )
        right.text_input(
            "Key variable",
            placeholder="none",
            key="engine-add-key",
            help="The studio's environment variable that holds the engine's API key. Keys are never stored.",
        )
        st.form_submit_button("Add", on_click=added, args=(service,))
    st.caption(
        "Changes take effect at once in every gateway process and are kept after a restart (engines.json in the data "
        "folder). Engines named by the settings can only be changed there."
    )


def added(service: Service) -> None:
    """Add the engine of the form; the fields are emptied when it was added."""
    values = {
        name: str(st.session_state[f"engine-add-{name}"]).strip() for name in ("name", "address", "models", "key")
    }
    models = [one.strip() for one in values["models"].split(",") if one.strip()]
    fields = {
        "name": values["name"],
        "base_url": values["address"],
        "models": models,
        "api_key_env": values["key"] or None,
    }
    try:
        service.engine_changes.add(fields)
    except StudioError as error:
        st.session_state[FAILURE] = error
        return
    for name in values:
        st.session_state[f"engine-add-{name}"] = ""
