"""Says what is wrong with ports, disk, engine, tokenizer, packages and data folder, and the mend."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from core.config import Settings

MIN_FREE_BYTES = 1 << 30
PACKAGES = (
    "streamlit",
    "duckdb",
    "pyarrow",
    "plotly",
    "pandas",
    "torch",
    "transformers",
    "litellm",
    "uvicorn",
)
BANNED_VERSIONS = {("litellm", "1.82.7"), ("litellm", "1.82.8")}

State = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: ``state`` ok, warn or bad; ``mend`` says what to do when it is not ok."""

    check: str
    state: State
    message: str
    mend: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON and tables."""
        return asdict(self)


def diagnose(settings: Settings, *, port_is_ours: bool = False) -> list[Finding]:
    """Run all checks; none of them raises. ``port_is_ours``: the running service asks about itself."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        check_python,
        check_packages,
        lambda: check_data_dir(settings.data_dir),
        lambda: check_exposure(settings),
        lambda: check_engine(settings),
        lambda: check_tokenizer(settings),
    ]
    if not port_is_ours:
        checks.append(lambda: check_port(settings.host, settings.port))
    return [finding for check in checks for finding in check()]


def deep_findings(report: Mapping[str, Any]) -> list[Finding]:
    """What the deep check (``core.ingest.deep``, as JSON) found, a line per step of which something is wrong."""
    told = (
        f"{report['n_steps']} steps, {report['n_against_journal']} compared with the journal,"
        f" {report['n_without_record']} without a record"
    )
    findings = [Finding("steps", "bad" if report["n_mismatches"] else "ok", told)]
    mend = "restore a backup; the journal or the pool was changed or damaged"
    findings += [Finding(f"step {one['step_uid']}", "bad", one["what"], mend) for one in report["mismatches"]]
    if (more := report["n_mismatches"] - len(report["mismatches"])) > 0:
        findings.append(Finding("more steps", "bad", f"{more} more", mend))
    for one in report["versions"]:
        what = "has the hash it was frozen with" if one["intact"] else "is not what was frozen"
        findings.append(Finding(f"version {one['name']}", "ok" if one["intact"] else "bad", what))
    return findings


def check_python() -> Iterator[Finding]:
    """The interpreter."""
    yield Finding("python", "ok", "Python " + ".".join(map(str, sys.version_info[:3])))


def check_packages() -> Iterator[Finding]:
    """Installed versions; known-malicious ones are bad."""
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Finding("package " + name, "bad", "not installed", "run `make studio`")
            continue
        if (name, version) in BANNED_VERSIONS:
            mend = "this release was malicious: remove it and run `make studio`"
            yield Finding("package " + name, "bad", version, mend)
        else:
            yield Finding("package " + name, "ok", version)


def check_data_dir(data_dir: Path) -> Iterator[Finding]:
    """The folder exists or can be made, can be written, and has room."""
    existing = next(p for p in [data_dir.absolute(), *data_dir.absolute().parents] if p.exists())
    if not os.access(existing, os.W_OK):
        yield Finding("data folder", "bad", f"{existing} is not writable", "set CLAW_STUDIO_DATA_DIR")
        return
    free = shutil.disk_usage(existing).free
    message = f"{data_dir} on a disk with {free / 2**30:.1f} GiB free"
    if free < MIN_FREE_BYTES:
        yield Finding("disk", "warn", message, "free some room: a full disk fails calls rather than lose them")
    else:
        yield Finding("disk", "ok", message)


def check_exposure(settings: Settings) -> Iterator[Finding]:
    """Anything but loopback demands a key."""
    if settings.is_loopback:
        yield Finding("exposure", "ok", f"{settings.host}: only this machine can reach the gateway")
    elif settings.api_key:
        yield Finding("exposure", "ok", f"{settings.host}: open to the network, calls need the key")
    else:
        yield Finding(
            "exposure",
            "bad",
            f"{settings.host} is open to the network without a key",
            "set CLAW_STUDIO_API_KEY",
        )


def check_port(host: str, port: int) -> Iterator[Finding]:
    """The gateway's port is free."""
    if port == 0:
        yield Finding("port", "ok", "any free port")
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as err:
            mend = "stop what listens there, or set CLAW_STUDIO_PORT"
            yield Finding("port", "bad", f"{host}:{port}: {err.strerror or err}", mend)
        else:
            yield Finding("port", "ok", f"{host}:{port} is free")


def check_engine(settings: Settings) -> Iterator[Finding]:
    """Every policy engine is named in a way we know, and its port answers."""
    for engine in [*settings.engine.split(","), *(one.base_url for one in settings.engines)]:
        yield from _check_address(engine.strip())


def _check_address(engine: str) -> Iterator[Finding]:
    if engine == "local":
        yield Finding("engine", "ok", "the embedded model (starts at the first call)")
        return
    if engine.startswith("litellm:"):
        if "/" in engine:
            yield Finding("engine", "ok", f"LiteLLM provider {engine.removeprefix('litellm:')}")
        else:
            yield Finding("engine", "bad", engine, "write litellm:provider/model")
        return
    host, port = _host_port(engine)
    if host is None:
        mend = "write 'local', 'litellm:provider/model' or a URL like http://127.0.0.1:8000/v1"
        yield Finding("engine", "bad", f"{engine!r} is no engine", mend)
        return
    try:
        with socket.create_connection((host, port), timeout=2):
            yield Finding("engine", "ok", f"{engine} accepts connections")
    except OSError as err:
        yield Finding("engine", "bad", f"{engine}: {err}", "start the engine, or set CLAW_STUDIO_ENGINE")


def _host_port(url: str) -> tuple[str | None, int]:
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or parts.hostname is None:
        return None, 0
    return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def check_tokenizer(settings: Settings) -> Iterator[Finding]:
    """The tokenizer that pages use to show token text can be loaded."""
    from core.serving.tokenizer import load_tokenizer, tokenizer_hash

    directory = settings.local_model_dir
    try:
        load_tokenizer(directory)
        yield Finding("tokenizer", "ok", f"loads, hash {tokenizer_hash(directory)[:12]}")
    except (OSError, ValueError) as err:
        yield Finding("tokenizer", "bad", str(err), "point CLAW_STUDIO_LOCAL_MODEL_DIR at a folder with tokenizer.json")
