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
    try:
        tokenizer_of(step, service.settings)
        captured = captured_message(step.get("response_message") or {})
        begin = dict(current.message) if current is not None else captured
        # A saved, undone or redone edit begins the editor anew.
        key = f"edit-{uid}-{len(edits)}-{current.edit_uid if current else ''}"
        message = editor(begin, step, key)
        note = st.text_input("Why", key=f"{key}-note", placeholder="optional, shown in the history")
        changed = message != begin
        with st.container(horizontal=True, gap="small"):
            if st.button("Save edit", type="primary", icon=":material/save:", disabled=not changed, key=f"{key}-save"):
                fields = {name: value for name, value in message.items() if name != "role"}
                saved = save_edit(
                    service.pool, service.settings, uid, fields,
                    author=state.author(), source=SOURCE, at=service.clock(), note=note.strip() or None,
                )  # fmt: skip
                st.toast(f"Edit saved: {kit.counted(len(saved.response_ids), 'token')}")
                st.rerun()
            if current is not None and st.button("Use the captured answer", icon=":material/undo:", key=f"{key}-undo"):
                service.pool.labels.undo(current.action_uid)
                st.rerun()
        if changed:
            value = encoded(step, {name: value for name, value in message.items() if name != "role"}, service.settings)
            show_change(step, value["text"], len(value["response_ids"]), "not saved yet")
        elif current is not None:
            show_change(step, current.text, len(current.response_ids), "in force")
    except StudioError as error:
        kit.show_error(error)
    history(edits, current)


def editor(begin: Message, step: Mapping[str, Any], key: str) -> Message:
    """Inputs of the answer's parts; returns the message that they make."""
    message: Message = {"role": "assistant"}
    thought = ""
    if begin.get("reasoning_content") or st.toggle("Thinking", key=f"{key}-thinks", value=False):
        thought = st.text_area("Thinking", begin.get("reasoning_content", ""), key=f"{key}-thought", height=120)
    message["content"] = st.text_area("Answer", begin["content"], key=f"{key}-content", height=100)
    if thought:
        message["reasoning_content"] = thought
    calls = tool_calls(begin.get("tool_calls") or [], step, key)
    if calls:
        message["tool_calls"] = calls
    return message


def tool_calls(begin: Sequence[Mapping[str, Any]], step: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Inputs of the tool calls: name and arguments of each, buttons that add and remove one."""
    offered = [str((tool.get("function") or tool).get("name")) for tool in step.get("tools") or ()]
    if not offered and not begin:
        return []
    count_key = f"{key}-calls"
    n = st.session_state.setdefault(count_key, len(begin))
    calls = []
    for place in range(n):
        known = begin[place] if place < len(begin) else None
        function = known["function"] if known is not None else {"name": offered[0], "arguments": "{}"}
        names = list(dict.fromkeys([*offered, function["name"]]))
        name = st.selectbox(
            f"Tool call {place + 1}", names, index=names.index(function["name"]), key=f"{key}-name-{place}"
        )
        shown = indented(function["arguments"])
        written = st.text_area(f"Arguments {place + 1}", shown, key=f"{key}-arguments-{place}", height=96)
        arguments = function["arguments"] if written == shown else written
        uid = known["id"] if known is not None else f"call_{place}"
        calls.append({"id": uid, "type": "function", "function": {"name": name, "arguments": arguments}})
    with st.container(horizontal=True, gap="small"):
        if offered and st.button("Add a tool call", icon=":material/add:", key=f"{key}-add", type="tertiary"):
            st.session_state[count_key] = n + 1
            st.rerun()
        if n and st.button("Remove the last call", icon=":material/remove:", key=f"{key}-remove", type="tertiary"):
            st.session_state[count_key] = n - 1
            st.rerun()
    return calls


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
    with st.container(horizontal=True, gap="small"):
        active = [one for one in edits if not one.undone]
        undone = [one for one in edits if one.undone]
        if active and st.button("Undo the newest edit", icon=":material/undo:", key="undo-edit"):
            labels.undo(active[-1].action_uid)
            st.rerun()
        if undone and st.button("Redo", icon=":material/redo:", key="redo-edit", help="Redo the newest undone edit"):
            labels.redo(undone[-1].action_uid)
            st.rerun()


def standing(one: Edit, current: Edit | None) -> str:
    """Whether an edit counts."""
    if one.undone:
        return dot_label("undone", "muted")
    if current is not None and one.edit_uid == current.edit_uid:
        return dot_label("in force", "good")
    return dot_label("replaced" if one.edit_uid else "withdrawn", "muted")
