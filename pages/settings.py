"""The Settings page: the doctor's findings, settings, engines, keys, retention, backup, data folder, versions."""

import os
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import streamlit as st

from core.service import Service
from studio import components, kit, state
from studio.frame.header import page_header
from studio.kit.figures import Tone
from studio.kit.html_tables import dot_label, html_table
from studio.nav import PAGES
from studio.widgets.settings import provenance
from studio.widgets.settings.engines import show_engines
from studio.widgets.settings.keys import reviewer_name, show_keys
from studio.widgets.settings.maintenance import backup_panel, deep_check_panel, retention_panel

PACKAGES = (
    "streamlit",
    "duckdb",
    "pyarrow",
    "plotly",
    "starlette",
    "uvicorn",
    "litellm",
    "torch",
    "transformers",
    "trl",
)
ORIGIN_TONE: dict[str, Tone] = {"environment": "good", "argument": "good", "default": ""}


def findings(service: Service) -> None:
    checks = service.health()
    n_wrong = sum(check["state"] != "ok" for check in checks)
    kit.section("Doctor", "no problems" if n_wrong == 0 else f"{n_wrong} of {len(checks)} checks report a problem")
    order = {"bad": 0, "warn": 1, "ok": 2}
    tone: dict[str, Tone] = {"bad": "bad", "warn": "warn", "ok": "good"}
    rows = [
        (
            dot_label(check["check"], tone[check["state"]]),
            kit.escape(check["message"]),
            kit.escape(check.get("mend") or ""),
        )
        for check in sorted(checks, key=lambda check: order[check["state"]])
        if not check["check"].startswith("package ") or check["state"] != "ok"
    ]
    html_table(["Check", "Finding", "What to do"], rows)


def settings_table(service: Service) -> None:
    path = provenance.toml_path(os.environ)
    kit.section("Settings", f"The environment overrides {path.name}; changes take effect at the next start.")
    rows = []
    for row in provenance.setting_rows(service.settings, os.environ):
        origin = f'<span class="cs-tag {ORIGIN_TONE.get(row.origin, "good")}">{kit.escape(row.origin)}</span>'
        name = f'<code title="{kit.escape(row.env_name)}">{kit.escape(row.name)}</code>'
        value = kit.escape(readable(row.name, row.value))
        value = value if row.origin == "default" else f"<b>{value}</b>"
        rows.append((name, value, origin, f'<span class="q">{kit.escape(row.description)}</span>'))
    html_table(["Setting", "Value", "Source", "Meaning"], rows, wide=(1,))


def readable(name: str, value: Any) -> Any:
    """A setting's value with its unit."""
    if name.endswith("_bytes"):
        return kit.bytes_text(value)
    return kit.seconds(value) if name.endswith("_s") else value


def theme() -> None:
    kit.section("Theme", "of this browser, for all pages")
    components.theme_choice(
        page=PAGES["settings"].url_path, pages=[page.url_path for page in PAGES.values()], key="theme"
    )


def policy(service: Service) -> None:
    kit.section("Policy")
    current = service.policy
    newest = list(current.history)[-1] if current.history else None
    kit.facts(
        [
            ("policy version", current.version),
            ("weight sync", "in progress" if current.syncing else "expired" if current.sync_expired else "none"),
            ("last report", f"{newest.event} v{newest.version}" if newest else None),
        ]
    )


def folder(service: Service) -> None:
    kit.section("Data folder", str(service.settings.data_dir.resolve()))
    rows = [
        (
            f'{kit.escape(part.name)}<br><span class="q">{kit.escape(part.path.name)}</span>',
            kit.count(part.n_files),
            kit.bytes_text(part.n_bytes),
        )
        for part in provenance.folder_sizes(service.settings)
    ]
    html_table(["Part", "Files", "Size"], rows, numeric=(1, 2))


def trash(service: Service) -> None:
    runs = service.trash()
    days = service.settings.trash_days
    kit.section(
        "Trash", f"Data deleted by retention; removed permanently after {days:g} {'day' if days == 1 else 'days'}."
    )
    if not runs:
        st.html(kit.caption_html("The trash is empty."))
        return
    rows = [
        (
            f'<code title="{kit.escape(run["run_uid"])}">{kit.escape(run["run_uid"][:12])}…</code>',
            kit.count(run["deleted"]["n_trajectories"]),
            kit.bytes_text(run["n_bytes"]),
            kit.escape(datetime.fromtimestamp(run["until"], UTC).strftime("%Y-%m-%d %H:%M UTC")),
        )
        for run in runs
    ]
    html_table(["Run", "Trajectories", "Size", "Until"], rows, numeric=(1, 2))
    st.caption("Restore a run:")
    st.code(f"claw-studio trash restore {runs[0]['run_uid']}", language="bash", wrap_lines=True)


def versions() -> None:
    kit.section("Versions")
    rows: list[tuple[str, str | None]] = [("Python", sys.version.split()[0])]
    for name in ("claw-studio", *PACKAGES):
        try:
            rows.append((name, version(name)))
        except PackageNotFoundError:
            rows.append((name, None))
    kit.facts(rows)


def page() -> None:
    page_header("settings")
    service = state.service()
    main, side = st.columns([8, 3.4], gap="large")
    with main:
        with kit.error_boundary():
            findings(service)
        for part in (deep_check_panel, show_engines, show_keys, retention_panel, settings_table):
            with kit.error_boundary():
                part(service)
    with side:
        with kit.error_boundary():
            reviewer_name()
            theme()
        for part in (policy, folder, backup_panel, trash):
            with kit.error_boundary():
                part(service)
        versions()


page()
