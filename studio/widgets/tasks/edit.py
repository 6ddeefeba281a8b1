"""The form that changes a task into a new version of its pack."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from core.errors import InvalidInput
from core.packs.edit import edited, from_text_field, parsed_json
from core.packs.model import SPLITS, Pack, PackTask
from studio import kit
from studio.widgets.tasks.packs import keep

NONE = "none"
ROLES = {"input_files": "Inputs", "checker_files": "Check", "solution_files": "Reference solution"}


def edit_tab(pack: Pack, task: PackTask) -> None:
    """Fields on the left, one file on the right. Each is saved by its own button."""
    st.caption("Saving creates a new version of the pack. Runs and trajectories keep the version that they used.")
    left, right = st.columns(2, gap="medium")
    with left:
        fields_form(pack, task)
    with right:
        file_form(pack, task)


def fields_form(pack: Pack, task: PackTask) -> None:
    """The task's own fields."""
    with st.form(f"edit-{task.content_hash[:12]}", border=False):
        query = st.text_area("Query", task.query, height=220)
        top, bottom = st.columns(2), st.columns(2)
        category = top[0].text_input("Category", task.category or "")
        splits = [NONE, *SPLITS]
        split = top[1].selectbox("Split", splits, index=splits.index(task.split or NONE))
        shown_tags = ", ".join(task.tags)
        tags = bottom[0].text_input("Tags", shown_tags, help="Separated by commas")
        limit = bottom[1].number_input("Time limit, seconds", value=task.timeout_s, min_value=0.0, placeholder="none")
        answer = st.text_input("Expected answer (JSON)", _json(task.answer), placeholder="none")
        rules = st.text_area("Rules for a judge (JSON)", _json(list(task.rules) or None, indent=2), height=140)
        rubric = st.text_area("Rubric as text", task.rubric or "", height=140, placeholder="none")
        if st.form_submit_button("Save as a new version", type="primary", icon=":material/save:"):
            with kit.error_boundary():
                fields: dict[str, Any] = {
                    "query": from_text_field(task.query, query),
                    "category": category,
                    "split": None if split == NONE else split,
                    "tags": task.tags if tags == shown_tags else tags.split(","),
                    "timeout_s": limit,
                    "answer": parsed_json(answer, "answer"),
                    "rules": parsed_json(rules, "rules"),
                }
                if rubric != (task.rubric or ""):
                    fields["rubric"] = from_text_field(task.rubric or "", rubric)
                keep(edited(pack, task.task_id, fields))


def file_form(pack: Pack, task: PackTask) -> None:
    """One file of the task: its text, a new one, or its removal."""
    role = st.selectbox("Files", list(ROLES), format_func=ROLES.__getitem__, key="edit-role")
    files = getattr(task, role)
    new = "a new file"
    path = st.selectbox("File", [*files, new], key=f"edit-path-{role}")
    if path == new:
        path = st.text_input("Path", placeholder="folder/name.txt", key=f"edit-new-{role}").strip()
    one = files.get(path)
    if one is not None and one.text is None:
        st.caption("The file is no UTF-8 text, so it can't be edited here. It can be removed.")
    with st.form(f"file-{task.content_hash[:12]}-{role}-{path}", border=False):
        text = st.text_area(
            "Text", "" if one is None else one.text or "", height=380, disabled=one is not None and one.text is None
        )
        with st.container(horizontal=True):
            save = st.form_submit_button("Save as a new version", type="primary", icon=":material/save:")
            remove = st.form_submit_button("Remove the file", icon=":material/delete:", disabled=one is None)
        if save or remove:
            with kit.error_boundary():
                if not path:
                    raise InvalidInput("The file has no path.", field="path", hint="enter one, such as folder/name.txt")
                before = "" if one is None or one.text is None else one.content.decode()
                content = None if remove else from_text_field(before, text)
                keep(edited(pack, task.task_id, {}, {role: {path: content}}))


def _json(value: Any, indent: int | None = None) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=indent)
