"""Backup, the deep check and retention on the Settings page."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import streamlit as st

from core.doctor import deep_findings
from core.pool.upkeep.retention import Retention
from core.service import Service
from studio import kit, state
from studio.kit.figures import Tone
from studio.kit.html_tables import dot_label, html_table
from studio.kit.jobs import Cancelled, Job

TONES: dict[str, Tone] = {"bad": "bad", "warn": "warn", "ok": "good"}


class BackupJob(Job):
    """One backup. ``manifest`` is set when it is complete."""

    def __init__(self, service: Service, out: Path) -> None:
        super().__init__("backup", 1, "the backup was cancelled")
        self.out = out
        self.manifest: dict[str, Any] | None = None
        self._service = service
        self.start()

    def work(self) -> None:
        """Copy the data folder."""
        self.manifest = self._service.backup(self.out)


class DeepCheckJob(Job):
    """One deep check. ``report`` is set at its end."""

    def __init__(self, service: Service) -> None:
        super().__init__("deep-check", 1, "the check was cancelled")
        self.part = "journal"
        self.result: dict[str, Any] | None = None
        self._service = service
        self.start()

    def work(self) -> None:
        """Compare every step with its journal record and its hash."""
        self.result = self._service.deep_check(self._step).as_dict()

    def _step(self, part: str, done: int, total: int) -> None:
        self.part = part
        self.report(done, total)


def backup_panel(service: Service) -> None:
    """A button that backs up to a new folder, with the result."""
    kit.section("Backup", "pool, journal, labels, packs, runs and workspaces, copied while they are in use")
    stamp = datetime.fromtimestamp(service.clock(), UTC).strftime("%Y%m%d-%H%M%S")
    job: BackupJob | None = st.session_state.get("backup-job")
    default = service.settings.data_dir.resolve().parent / f"claw-studio-backup-{stamp}"
    folder = st.text_input("New folder on the studio's machine", placeholder=str(default), key="backup-folder")
    if st.button("Back up now", icon=":material/backup:", disabled=job is not None and job.running):
        out = Path(folder.strip()).expanduser() if folder.strip() else default
        st.session_state["backup-job"] = BackupJob(service, out.absolute())
        st.rerun()
    if job is None:
        return
    if job.running:
        kit.live(0.5)(backup_progress)(job)
    elif job.error is not None:
        kit.show_error(job.error)
    elif job.manifest is not None:
        n_bytes = sum(file["n_bytes"] for file in job.manifest["files"].values())
        kit.facts(
            [
                ("folder", job.out),
                ("steps", kit.count(job.manifest["n_steps"])),
                ("size", kit.bytes_text(n_bytes)),
            ]
        )
        if damaged := job.manifest["damaged"]:
            what = kit.counted(len(damaged), "file was", "files were")
            st.warning(kit.escape_markdown(f"{what} damaged already, and copied as found: {', '.join(damaged[:10])}"))
        st.caption("Restore it into an empty data folder:")
        st.code(f"claw-studio restore {job.out}", language="bash", wrap_lines=True)


def backup_progress(job: BackupJob) -> None:
    """What is drawn while a backup runs."""
    if not job.running:
        st.rerun()
    st.caption("Copying…")


def deep_check_panel(service: Service) -> None:
    """A button that compares every step with its journal record, with progress and findings."""
    kit.section("Deep check", "compares every step with its journal record and its hash; reads everything once")
    job: DeepCheckJob | None = st.session_state.get("deep-check-job")
    if st.button("Check every step", icon=":material/fact_check:", disabled=job is not None and job.running):
        st.session_state["deep-check-job"] = DeepCheckJob(service)
        st.rerun()
    if job is None:
        return
    if job.running:
        kit.live(0.5)(deep_check_progress)(job)
    elif isinstance(job.error, Cancelled):
        st.html(kit.caption_html("The check was cancelled."))
    elif job.error is not None:
        kit.show_error(job.error)
    elif job.result is not None:
        findings = deep_findings(job.result)
        html_table(
            ["Check", "Finding", "What to do"],
            [
                (dot_label(one.check, TONES[one.state]), kit.escape(one.message), kit.escape(one.mend or ""))
                for one in findings
            ],
        )


def deep_check_progress(job: DeepCheckJob) -> None:
    """The progress of a check, and the button that cancels it."""
    if not job.running:
        st.rerun()
    what = "segments" if job.part == "journal" else "trajectories"
    st.progress(job.done / job.total if job.total else 1.0, f"{job.done:,} of {job.total:,} {what}")
    if st.button("Cancel", icon=":material/cancel:", key="cancel-deep-check"):
        job.cancel()


def retention_panel(service: Service) -> None:
    """A rule, what it would delete now, and the button that moves that to the trash."""
    kit.section("Retention", "preview what a rule would delete; deleted trajectories go to the trash first")
    left, middle, right = st.columns(3, gap="small")
    days = left.number_input("Older than, days", 0.0, value=None, step=1.0, key="retention-days")
    consumed = middle.number_input("Consumed at least", 1, value=None, step=1, key="retention-consumed", help="times")
    channels = list(service.pool.stats.totals()["by_channel"])
    channel = right.selectbox("Channel", [None, *channels], format_func=lambda one: one or "All", key="retention-in")
    if days is None and consumed is None:
        st.caption("Enter an age, a number of uses, or both. Trajectories must meet all conditions.")
        return
    rule = Retention(older_than_days=days, consumed=consumed, channel=channel)
    counts = service.pool.retention.preview(rule)
    kit.figures(
        [
            kit.Figure("Would be deleted", kit.count(counts["n_trajectories"]), "trajectories"),
            kit.Figure("Steps", kit.count(counts["n_steps"])),
            kit.Figure("Space", kit.bytes_text(counts["n_bytes"]), "by tokens"),
            kit.Figure("Kept: in a version", kit.count(counts["n_kept_in_version"])),
            kit.Figure("Kept: leased", kit.count(counts["n_kept_leased"])),
            kit.Figure("Kept: recent", kit.count(counts["n_kept_recent"]), "added within an hour"),
        ],
        dense=True,
    )
    n = counts["n_trajectories"]
    sure = st.checkbox("Yes, move them to the trash", disabled=n == 0, key="retention-sure")
    title = f"Delete {kit.counted(n, 'trajectory', 'trajectories')}"
    if st.button(title, icon=":material/delete_sweep:", disabled=not (n and sure)):
        applied = service.pool.retention.apply(rule, author=state.author(), confirm=counts["confirm"])
        st.toast(f"{kit.counted(applied['n_trajectories'], 'trajectory', 'trajectories')} moved to the trash")
        st.rerun()
