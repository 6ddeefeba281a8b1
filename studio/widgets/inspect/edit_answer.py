"""The editor of a step's answer: text, thinking and tool calls, what an edit changes, and its history with undo."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from core.editing import captured_message, captured_text, encoded, save_edit, text_difference, tokenizer_of
from core.errors import StudioError
from core.pool.edits import Edit
from studio import kit, state
from studio.kit.html_tables import dot_label, html_table
from studio.widgets.labels.panel import SOURCE

Message = dict[str, Any]
TAGS = {"same": "", "removed": "del", "added": "ins"}


def edit_tab(step: Mapping[str, Any]) -> None:
    """Draw the editor of the step's answer, the text that SFT and DPO would train on, and all earlier edits."""
    service = state.service()
    uid = str(step["step_uid"])
    edits = service.pool.edits.of_step(uid)
    current = service.pool.edits.current(uid)
    kit.section("Edit the answer", "the captured step stays as it is; other steps are not changed")
    st.caption(
        "An edited answer is a target for SFT and, with the captured one as rejected, a pair for DPO. "
        "Its tokens are encoded and not sampled: RL plans never take them."
    )
    # A saved, undone or redone edit begins the editor anew.
    key = f"edit-{uid}-{len(edits)}-{current.edit_uid if current else ''}"
    try:
        tokenizer_of(step, service.settings)
        captured = captured_message(step.get("response_message") or {})
        begin = dict(current.message) if current is not None else captured
        message = editor(begin, step, key)
        st.text_input("Why", key=f"{key}-note", placeholder="optional, shown in the history")
        with st.container(horizontal=True, gap="small"):
            st.button(
                "Save edit", type="primary", icon=":material/save:", disabled=message == begin, key=f"{key}-save",
                on_click=save, args=(begin, step, key),
            )  # fmt: skip
            if current is not None:
                st.button(
                    "Use the captured answer", icon=":material/undo:", key=f"{key}-undo",
                    on_click=service.pool.labels.undo, args=(current.action_uid,),
                )  # fmt: skip
        if (refused := st.session_state.pop(f"{key}-refused", None)) is not None:
            kit.show_error(refused)
        elif message != begin:
            value = encoded(step, fields_of(message), service.settings)
            show_change(step, value["text"], len(value["response_ids"]), "not saved yet")
        elif current is not None:
            show_change(step, current.text, len(current.response_ids), "in force")
    except StudioError as error:
        kit.show_error(error)
    history(edits, current)


def save(begin: Message, step: Mapping[str, Any], key: str) -> None:
    """Store the edited answer. It is a callback, so that the page is drawn once, with the newest text."""
    service = state.service()
    note = str(st.session_state.get(f"{key}-note") or "").strip()
    try:
        saved = save_edit(
            service.pool, service.settings, str(step["step_uid"]), fields_of(written(begin, step, key)),
            author=state.author(), source=SOURCE, at=service.clock(), note=note or None,
        )  # fmt: skip
    except StudioError as error:
        st.session_state[f"{key}-refused"] = error
    else:
        st.toast(f"Edit saved: {kit.counted(len(saved.response_ids), 'token')}")


def fields_of(message: Message) -> Message:
    """The fields that a person edits."""
    return {name: value for name, value in message.items() if name != "role"}


def editor(begin: Message, step: Mapping[str, Any], key: str) -> Message:
    """Inputs of the answer's parts; returns the message that they make."""
    if begin.get("reasoning_content") or st.toggle("Thinking", key=f"{key}-thinks", value=False):
        st.text_area("Thinking", begin.get("reasoning_content", ""), key=f"{key}-thought", height=120)
    st.text_area("Answer", begin["content"], key=f"{key}-content", height=100)
    tool_calls(begin, step, key)
    return written(begin, step, key)


def tool_calls(begin: Message, step: Mapping[str, Any], key: str) -> None:
    """Inputs of the tool calls: name and arguments of each, buttons that add and remove one."""
    offered, count_key = offered_tools(step), f"{key}-calls"
    n = st.session_state.setdefault(count_key, len(begin.get("tool_calls") or ()))
    if not offered and not n:
        return
    for place in range(n):
        function = first_call(begin, offered, place)["function"]
        names = list(dict.fromkeys([*offered, function["name"]]))
        st.selectbox(f"Tool call {place + 1}", names, index=names.index(function["name"]), key=f"{key}-name-{place}")
        shown = indented(function["arguments"])
        st.text_area(f"Arguments {place + 1}", shown, key=f"{key}-arguments-{place}", height=96)
    with st.container(horizontal=True, gap="small"):
        if offered:
            st.button(
                "Add a tool call", icon=":material/add:", key=f"{key}-add", type="tertiary",
                on_click=set_calls, args=(count_key, n + 1),
            )  # fmt: skip
        if n:
            st.button(
                "Remove the last call", icon=":material/remove:", key=f"{key}-remove", type="tertiary",
                on_click=set_calls, args=(count_key, n - 1),
            )  # fmt: skip


def set_calls(count_key: str, n: int) -> None:
    """Set the number of tool calls in the editor."""
    st.session_state[count_key] = n


def written(begin: Message, step: Mapping[str, Any], key: str) -> Message:
    """The message that the editor's inputs make now."""
    values = st.session_state
    message: Message = {"role": "assistant", "content": values[f"{key}-content"]}
    thinks = begin.get("reasoning_content") or values.get(f"{key}-thinks")
    if thinks and (thought := values.get(f"{key}-thought")):
        message["reasoning_content"] = thought
    calls = []
    for place in range(values.get(f"{key}-calls", 0)):
        first = first_call(begin, offered_tools(step), place)
        arguments = values[f"{key}-arguments-{place}"]
        if arguments == indented(first["function"]["arguments"]):
            arguments = first["function"]["arguments"]
        calls.append({**first, "function": {"name": values[f"{key}-name-{place}"], "arguments": arguments}})
    if calls:
        message["tool_calls"] = calls
    return message


def first_call(begin: Message, offered: Sequence[str], place: int) -> Message:
    """The tool call that the inputs at a place begin with: the answer's, or a new one."""
    known: Sequence[Message] = begin.get("tool_calls") or ()
    if place < len(known):
        return known[place]
    return {"id": f"call_{place}", "type": "function", "function": {"name": offered[0], "arguments": "{}"}}


def offered_tools(step: Mapping[str, Any]) -> list[str]:
    """Names of the tools that the step offers."""
    return [str((tool.get("function") or tool).get("name")) for tool in step.get("tools") or ()]


def indented(arguments: str) -> str:
    """Arguments as indented JSON where they are JSON."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False, indent=2)
    except ValueError:
        return arguments


def show_change(step: Mapping[str, Any], text: str, n_tokens: int, what: str) -> None:
    """The tokens' text of the edited answer, with what differs from the captured one."""
    captured = captured_text(step, state.service().settings)
    kit.section("Trained on", f"{what}: {kit.counted(n_tokens, 'token')} in the loss, after the captured prompt")
    runs = [
        f"<{TAGS[kind]}>{kit.escape(run)}</{TAGS[kind]}>" if TAGS[kind] else kit.escape(run)
        for kind, run in text_difference(captured, text)
    ]
    st.html(f'<div class="cs-changed">{"".join(runs)}</div>')


def history(edits: Sequence[Edit], current: Edit | None) -> None:
    """All edits of the step, newest first; each can be undone and redone."""
    if not edits:
        return
    kit.section("Edits of this answer", "newest first; the newest that is not undone counts")
    now = state.service().clock()
    html_table(
        ("state", "author", "when", "tokens", "answer", "why"),
        [
            (
                standing(one, current),
                kit.escape(one.author),
                kit.escape(kit.ago(one.created_at, now)),
                kit.count(len(one.response_ids)),
                kit.escape(one.text[:160]),
                kit.escape(one.note or ""),
            )
            for one in reversed(edits)
        ],
        numeric=(3,),
    )
    labels = state.service().pool.labels
    active = [one for one in edits if not one.undone]
    undone = [one for one in edits if one.undone]
    with st.container(horizontal=True, gap="small"):
        if active:
            st.button(
                "Undo the newest edit", icon=":material/undo:", key="undo-edit",
                on_click=labels.undo, args=(active[-1].action_uid,),
            )  # fmt: skip
        if undone:
            st.button(
                "Redo", icon=":material/redo:", key="redo-edit", help="Redo the newest undone edit",
                on_click=labels.redo, args=(undone[-1].action_uid,),
            )  # fmt: skip


def standing(one: Edit, current: Edit | None) -> str:
    """Whether an edit counts."""
    if one.undone:
        return dot_label("undone", "muted")
    if current is not None and one.edit_uid == current.edit_uid:
        return dot_label("in force", "good")
    return dot_label("replaced" if one.edit_uid else "withdrawn", "muted")
