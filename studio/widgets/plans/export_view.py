"""Display of an export: its progress and a cancel button, then its file or its error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import streamlit as st

from studio import kit
from studio.kit.jobs import Cancelled
from studio.widgets.plans.export_job import ExportJob

DOWNLOAD_MAX = 64 << 20


def show_job(job: ExportJob) -> None:
    """Draw the state of an export: running, cancelled, failed or written."""
    if job.running:
        kit.live(0.5)(export_progress)(job)
    elif isinstance(job.error, Cancelled):
        st.html(kit.caption_html(f"{job.error.message[:1].upper()}{job.error.message[1:]}."))
    elif job.error is not None:
        kit.show_error(job.error)
    elif job.result is not None:
        show_export(job.result)


def export_progress(job: ExportJob) -> None:
    """The progress of a running export, and the button that cancels it."""
    if not job.running:
        st.rerun()
    st.progress(job.done / job.total if job.total else 1.0, f"{job.done:,} of {job.total:,} steps")
    if st.button("Cancel", icon=":material/cancel:"):
        job.cancel()


def show_differences(differences: Iterable[Mapping[str, str | None]]) -> None:
    """Where the trainer deviates from the plan, a line each, with the flag that prevents it."""
    for one in differences:
        stops = f" <code>{kit.escape(one['flag'])}</code> prevents it." if one["flag"] else ""
        st.html(f'<div class="cs-note">{kit.escape(one["what"])}.{stops}</div>')


def show_export(result: Any) -> None:
    """The written file: path, size, load command and manifest."""
    manifest = result.manifest
    kit.section(result.path.name, f"{kit.bytes_text(manifest['n_bytes'])} · sha256 {manifest['sha256'][:16]}…")
    kit.facts(
        [
            ("file", result.path),
            ("manifest", result.manifest_path.name),
            ("rows", kit.count(manifest["n_rows"])),
            ("tokens", f"{kit.count(manifest['n_tokens'])}, {kit.count(manifest['n_loss_tokens'])} in the loss"),
            ("plan", manifest["plan"]["uid"]),
            ("sha256", manifest["sha256"]),
        ]
    )
    show_differences(manifest["differences"])
    st.caption("Load it, in its folder:")
    st.code(manifest["load_command"], language="bash", wrap_lines=True)
    if result.path.exists():
        with st.container(horizontal=True):
            if manifest["n_bytes"] <= DOWNLOAD_MAX:
                st.download_button(
                    "Download file", result.path.read_bytes, file_name=result.path.name, icon=":material/download:"
                )
            st.download_button(
                "Download manifest", result.manifest_path.read_bytes, file_name=result.manifest_path.name
            )
    else:
        st.caption(":orange[The file was moved or deleted afterwards.]")
    with st.expander("Manifest", icon=":material/description:"):
        st.json(manifest, expanded=1)
