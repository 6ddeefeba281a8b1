"""The choice of a stored pack version, and the form that imports one."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from core.errors import InvalidInput
from core.packs import Pack, read_pack
from core.packs.library import PackEntry
from core.packs.listing import Listing, listing
from core.tasks.demo import DEMO_DATA
from studio import kit, state
from studio.kit.url_choices import list_choice

DEMO_PACK = DEMO_DATA / "pack"
KEPT = "tasks-listing"


def chosen_pack(entries: list[PackEntry]) -> Pack:
    """The pack version in the URL; by default the newest."""
    # A label that changes with time would be taken for another choice.
    labels = {
        entry.version: f"{entry.name}  ·  {entry.version}  ·  {kit.counted(entry.n_tasks, 'task')}" for entry in entries
    }
    version = list_choice("Pack", labels, "pack", label_visibility="collapsed")
    return state.service().rollouts.packs.get(version)


def listing_of(pack: Pack) -> Listing:
    """The pack prepared for search; one is kept in the session."""
    kept: Listing | None = st.session_state.get(KEPT)
    if kept is None or kept.pack.version != pack.version:
        kept = st.session_state[KEPT] = listing(pack)
    return kept


def import_form(prefix: str) -> None:
    """Import a pack from a folder or file of this machine, or the demo pack."""
    with st.form(f"{prefix}-import", border=False):
        path = st.text_input(
            "Folder or file of tasks",
            placeholder="/path/to/tasks",
            help="The format is detected: docs/packs.md lists them",
        )
        name = st.text_input("Name", placeholder="default: the folder's name")
        if st.form_submit_button("Import", icon=":material/upload:", type="primary"):
            with kit.error_boundary():
                if not path.strip():
                    raise InvalidInput("No path is given.", field="path", hint="enter the folder or file of a pack")
                if not Path(path.strip()).is_absolute():
                    raise InvalidInput(f"{path.strip()} is not an absolute path.", field="path", hint="begin with /")
                keep(read_pack(Path(path.strip())), name.strip())
    if DEMO_PACK.is_dir() and st.button("Load the demo pack", icon=":material/inventory_2:", key=f"{prefix}-demo"):
        keep(read_pack(DEMO_PACK), "demo")


def keep(pack: Pack, name: str = "") -> None:
    """Store a pack version, and show it."""
    named = Pack(name, pack.tasks, pack.format) if name else pack
    service = state.service()
    entry = service.rollouts.packs.keep(named, now=service.clock())
    state.set_query(pack=entry.version, page=None)
    st.toast(f"{kit.escape_markdown(entry.name)} {entry.version}: {kit.counted(entry.n_tasks, 'task')}")
    st.rerun()
