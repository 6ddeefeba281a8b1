"""The Tasks page: stored packs, their tasks, one task with its attempts, and reports of runs."""

from __future__ import annotations

import streamlit as st

from studio import kit, state
from studio.frame.header import page_header
from studio.kit.url_choices import segmented_choice
from studio.widgets.tasks.browse import browse
from studio.widgets.tasks.lint_view import lint_tab
from studio.widgets.tasks.packs import chosen_pack, import_form, listing_of
from studio.widgets.tasks.report_view import report_tab
from studio.widgets.tasks.task_view import task_view

VIEWS = {"tasks": "Tasks", "lint": "Lint", "report": "Report"}


def tasks_page() -> None:
    """A pack's tasks, the task in the URL, or the report of a run."""
    entries = state.service().rollouts.packs.entries()
    if not entries:
        kit.empty_state(
            "No task pack yet",
            "Import a folder or file of tasks: ClawGym, PinchBench, Harbor, verl, or plain prompts with answers.",
            icon="assignment",
            actions=import_form,
        )
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        pack = chosen_pack(entries)
        with st.popover("Import", icon=":material/upload:"):
            import_form("more")
    task = None if (task_id := state.query("task")) is None else pack.by_id.get(task_id)
    if task is not None:
        task_view(pack, task)
        return
    if task_id is not None:
        st.caption(f":orange[This version has no task {kit.escape_markdown(task_id)}.]")
    view = segmented_choice("View", VIEWS, "view")
    with kit.error_boundary():
        if view == "tasks":
            browse(listing_of(pack))
        elif view == "lint":
            lint_tab(pack)
        else:
            report_tab(pack)


page_header("tasks")
tasks_page()
