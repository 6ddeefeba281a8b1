"""Settings: every setting with its source, what is wrong and how to mend it, engines, policy, folder, versions."""

import os
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import streamlit as st

from core.service import Service
from studio import provenance, state
from studio import widgets as w
from studio.status import engine_state
from studio.widgets.figures import Tone
from studio.widgets.tables import html_table, mark

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
ENGINE_TONE: dict[bool | None, Tone] = {True: "good", False: "bad", None: ""}
ORIGIN_TONE: dict[str, Tone] = {"environment": "good", "argument": "good", "default": ""}


def findings(service: Service) -> None:
    checks = service.health()
    n_wrong = sum(check["state"] != "ok" for check in checks)
    w.section("Doctor", "nothing is wrong" if n_wrong == 0 else f"{n_wrong} of {len(checks)} checks need a look")
    order = {"bad": 0, "warn": 1, "ok": 2}
    tone: dict[str, Tone] = {"bad": "bad", "warn": "warn", "ok": "good"}
    rows = [
        (mark(check["check"], tone[check["state"]]), w.escape(check["message"]), w.escape(check.get("mend") or ""))
        for check in sorted(checks, key=lambda check: order[check["state"]])
        if not check["check"].startswith("package ") or check["state"] != "ok"
    ]
    html_table(["Check", "Finding", "What to do"], rows)


def settings_table(service: Service) -> None:
    path = provenance.toml_path(os.environ)
    w.section("Settings", f"Environment wins over {path.name}; changes take effect at the next start.")
    rows = []
    for row in provenance.setting_rows(service.settings, os.environ):
        origin = f'<span class="cs-tag {ORIGIN_TONE.get(row.origin, "good")}">{w.escape(row.origin)}</span>'
        name = f'<code title="{w.escape(row.env_name)}">{w.escape(row.name)}</code>'
        value = w.escape(readable(row.name, row.value))
        value = value if row.origin == "default" else f"<b>{value}</b>"
        rows.append((name, value, origin, f'<span class="q">{w.escape(row.description)}</span>'))
    html_table(["Setting", "Value", "Source", "Meaning"], rows, wide=(1,))


def readable(name: str, value: Any) -> Any:
    """A setting's value with its unit."""
    if name.endswith("_bytes"):
        return w.bytes_text(value)
    return w.seconds(value) if name.endswith("_s") else value


def engines(service: Service) -> None:
    w.section("Policy engines", "Calls go to the engine whose model pattern fits, else to the default.")
    rows = []
    for engine in service.engines.status():
        name = engine["name"] + (" (default)" if engine["default"] else "")
        rows.append(
            (
                mark(name, ENGINE_TONE[engine["ok"]]),
                w.escape(engine["kind"]),
                f"<code>{w.escape(engine['base_url'] or 'starts at the first call')}</code>",
                " ".join(f'<span class="cs-tag">{w.escape(glob)}</span>' for glob in engine["models"]),
                f'<span class="q">{w.escape(engine_state(engine))}</span>',
            )
        )
    html_table(["Engine", "Kind", "Address", "Models", "Probed"], rows)


def policy(service: Service) -> None:
    w.section("Policy")
    current = service.policy
    newest = list(current.history)[-1] if current.history else None
    w.facts(
        [
            ("policy version", current.version),
            ("weight sync", "in progress" if current.syncing else "expired" if current.sync_expired else "none"),
            ("last report", f"{newest.event} v{newest.version}" if newest else None),
        ]
    )


def folder(service: Service) -> None:
    w.section("Data folder", str(service.settings.data_dir.resolve()))
    rows = [
        (
            w.escape(part.name),
            f'<span class="q" style="white-space:nowrap">{w.escape(part.path.name)}</span>',
            w.count(part.n_files),
            w.bytes_text(part.n_bytes),
        )
        for part in provenance.folder_sizes(service.settings)
    ]
    html_table(["Part", "Path", "Files", "Size"], rows, numeric=(2, 3))


def trash(service: Service) -> None:
    runs = service.trash()
    days = service.settings.trash_days
    w.section("Trash", f"What retention deleted; gone for good after {days:g} {'day' if days == 1 else 'days'}.")
    if not runs:
        st.html(w.quiet("Nothing lies in it."))
        return
    rows = [
        (
            f'<code title="{w.escape(run["run_uid"])}">{w.escape(run["run_uid"][:12])}…</code>',
            w.count(run["deleted"]["n_trajectories"]),
            w.bytes_text(run["n_bytes"]),
            w.escape(datetime.fromtimestamp(run["until"], UTC).strftime("%Y-%m-%d %H:%M UTC")),
        )
        for run in runs
    ]
    html_table(["Run", "Trajectories", "Size", "Until"], rows, numeric=(1, 2))
    st.caption("Put a run back:")
    st.code(f"claw-studio trash restore {runs[0]['run_uid']}", language="bash", wrap_lines=True)


def versions() -> None:
    w.section("Versions")
    rows: list[tuple[str, str | None]] = [("Python", sys.version.split()[0])]
    for name in ("claw-studio", *PACKAGES):
        try:
            rows.append((name, version(name)))
        except PackageNotFoundError:
            rows.append((name, None))
    w.facts(rows)


def page() -> None:
    w.page_header("settings")
    service = state.service()
    main, side = st.columns([8, 3], gap="large")
    with main:
        with w.error_boundary():
            findings(service)
        with w.error_boundary():
            settings_table(service)
        with w.error_boundary():
            engines(service)
    with side:
        for part in (policy, folder, trash):
            with w.error_boundary():
                part(service)
        versions()


page()
