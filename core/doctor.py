"""Diagnosis: checks ports, disk, engine, tokenizer, packages and data folder, and suggests fixes."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from core.config import Settings, is_loopback
from core.journal import quarantined_damages
from core.scrub import split_login

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

DAMAGE_MEND = "all other records are read; check the disk, and restore the segment from a backup if you have one"

State = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check: ``state`` is ok, warn or bad; ``mend`` is the suggested fix, None if ok."""

    check: str
    state: State
    message: str
    mend: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields as a dict, for JSON and tables."""
        return asdict(self)


def diagnose(
    settings: Settings,
    *,
    port_is_ours: bool = False,
    sync: Mapping[str, Any] | None = None,
    pages_address: str | None = None,
) -> list[Finding]:
    """Run all checks; none of them raises.

    Args:
        settings: of the service.
        port_is_ours: the port is in use by the service that is checked.
        sync: its weight sync, from ``PolicyState.sync_json``.
        pages_address: address of the pages; None if they are not served.
    """
    checks: list[Callable[[], Iterator[Finding]]] = [
        check_python,
        check_packages,
        lambda: check_data_dir(settings.data_dir),
        lambda: check_journal(settings.journal_dir),
        lambda: check_pool(settings, running=port_is_ours),
        lambda: check_workspaces(settings),
        lambda: check_exposure(settings, pages_address),
        lambda: check_engine(settings),
        lambda: check_tokenizer(settings),
        lambda: check_sync(sync),
    ]
    if not port_is_ours:
        checks.append(lambda: check_port(settings.host, settings.port))
    return [finding for check in checks for finding in check()]


def deep_findings(report: Mapping[str, Any]) -> list[Finding]:
    """Findings of the deep check (``core.ingest.deepcheck``, as JSON), one line per step with a problem."""
    counts = (
        f"{report['n_steps']} steps, {report['n_against_journal']} compared with the journal,"
        f" {report['n_without_record']} without a record"
    )
    findings = [Finding("steps", "bad" if report["n_mismatches"] else "ok", counts)]
    mend = "restore a backup; the journal or the pool was changed or damaged"
    findings += [Finding(f"step {one['step_uid']}", "bad", one["what"], mend) for one in report["mismatches"]]
    for one in report["missing"]:
        what = f"the segment is missing; it has the records of {one['n_steps']} steps of the pool"
        findings.append(Finding(f"journal {one['segment']}", "bad", what, "restore the segment from a backup"))
    for one in report["damages"]:
        what = f"at byte {one['offset']}: {one['reason']}"
        findings.append(Finding(f"journal {one['segment']}", "bad", what, DAMAGE_MEND))
    if (more := report["n_mismatches"] - len(report["mismatches"])) > 0:
        findings.append(Finding("more steps", "bad", f"{more} more", mend))
    for one in report["versions"]:
        what = "has the hash of its freeze" if one["intact"] else "has changed since its freeze"
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
    """The folder exists or can be created, is writable and has free space."""
    existing = next(p for p in [data_dir.absolute(), *data_dir.absolute().parents] if p.exists())
    if not os.access(existing, os.W_OK):
        yield Finding("data folder", "bad", f"{existing} is not writable", "set CLAW_STUDIO_DATA_DIR")
        return
    free = shutil.disk_usage(existing).free
    message = f"{data_dir} on a disk with {free / 2**30:.1f} GiB free"
    if free < MIN_FREE_BYTES:
        yield Finding("disk", "warn", message, "free some space: calls fail when the disk is full")
    else:
        yield Finding("disk", "ok", message)


def check_journal(journal_dir: Path) -> Iterator[Finding]:
    """Damaged bytes that ingest found in the journal; a copy is kept beside the segment."""
    try:
        damage = quarantined_damages(journal_dir)
    except OSError as error:
        yield Finding("journal", "bad", f"{journal_dir} can't be read: {error.strerror}", "make the folder readable")
        return
    if not damage:
        yield Finding("journal", "ok", "no damage found")
        return
    places = ", ".join(f"{one.segment} at byte {one.offset}" for one in damage[:3])
    more = f" and {len(damage) - 3} more" if len(damage) > 3 else ""
    message = f"damaged in {len(damage)} places: {places}{more}; the bytes are kept in *.bad beside the segments"
    yield Finding("journal", "bad", message, DAMAGE_MEND + "; then remove the *.bad files")


def check_exposure(settings: Settings, pages_address: str | None = None) -> Iterator[Finding]:
    """Who can reach gateway and pages, and which keys they need. ``pages_address``: None if no pages are served."""
    key_mend = "set CLAW_STUDIO_API_KEY to a long random one"
    if settings.is_loopback:
        yield Finding("exposure", "ok", f"{settings.host}: only this machine can reach the gateway")
    elif settings.api_key:
        yield Finding("exposure", "ok", f"{settings.host}: open to the network, calls need a key")
        if settings.tls is None:
            mend = "set CLAW_STUDIO_TLS_CERT and CLAW_STUDIO_TLS_KEY, or use a proxy with HTTPS"
            yield Finding("encryption", "warn", "keys and texts are sent over the network as plain HTTP", mend)
    else:
        yield Finding("exposure", "bad", f"{settings.host} is open to the network without a key", key_mend)
    if settings.allowed_hosts and settings.api_key is None:
        names = ", ".join(settings.allowed_hosts)
        yield Finding("allowed hosts", "warn", f"{names}: requests to these names need no key", key_mend)
    if settings.tls is not None:
        yield from check_certificate(settings.tls)
    if pages_address is None:
        return
    if is_loopback(pages_address):
        yield Finding("pages", "ok", f"{pages_address}: only this machine can reach them")
    elif settings.api_key:
        yield Finding("pages", "ok", f"{pages_address}: open to the network, visitors need the admin key")
    else:
        message = f"{pages_address}: open to the network; all visitors are refused until an admin key is set"
        yield Finding("pages", "bad", message, f"{key_mend}, or STREAMLIT_SERVER_ADDRESS to 127.0.0.1")


def check_certificate(tls: tuple[Path, Path]) -> Iterator[Finding]:
    """Certificate and key can be read and match."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*tls)
    except OSError as err:
        mend = "tls_cert is a certificate chain in PEM, tls_key its private key without a passphrase"
        yield Finding("certificate", "bad", f"{tls[0]}: {err.strerror or err}", mend)
    else:
        yield Finding("certificate", "ok", f"{tls[0]}: the gateway serves HTTPS")


def check_sync(sync: Mapping[str, Any] | None) -> Iterator[Finding]:
    """An unfinished weight sync: calls wait for it; after it expires, their policy version is uncertain."""
    if sync is None:
        return
    described = f"version {sync['version']}, begun {sync['elapsed_s']:.0f} s ago"
    mend = "the trainer posts sync_finished; if it died, end the sync on Consume or with DELETE /api/v1/policy/sync"
    if sync["state"] == "expired":
        message = f"{described}, was never finished; calls are stamped with the versions before and after it"
        yield Finding("weight sync", "bad", message, mend)
    else:
        yield Finding("weight sync", "warn", f"{described}: calls wait, {sync['timeout_s']:.0f} s at most", mend)


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
            mend = "stop the program that uses it, or set CLAW_STUDIO_PORT"
            yield Finding("port", "bad", f"{host}:{port}: {err.strerror or err}", mend)
        else:
            yield Finding("port", "ok", f"{host}:{port} is free")


def check_engine(settings: Settings) -> Iterator[Finding]:
    """Every policy engine has a valid address, and its port answers."""
    for engine in [*settings.engine.split(","), *(one.base_url for one in settings.engines)]:
        # Findings are shown, so passwords are removed.
        yield from _check_address(split_login(engine.strip())[0])


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
        yield Finding("engine", "bad", f"{engine!r} is not an engine's address", mend)
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
    """The tokenizer that pages need for token texts can be loaded."""
    from core.serving.tokenizer import load_tokenizer, tokenizer_hash

    directory = settings.local_model_dir
    try:
        load_tokenizer(directory)
        yield Finding("tokenizer", "ok", f"loads, hash {tokenizer_hash(directory)[:12]}")
    except (OSError, ValueError) as err:
        yield Finding("tokenizer", "bad", str(err), "point CLAW_STUDIO_LOCAL_MODEL_DIR at a folder with tokenizer.json")


def check_isolation() -> Iterator[Finding]:
    """The level of isolation that checks of tasks run at, as its probe showed."""
    from core.sandbox import probed

    layers = probed()
    if not layers:
        yield Finding("isolation", "bad", "no program can be run", "see docs/sandboxes.md")
        return
    best = layers[0].isolation
    message = (
        f"{best.level}: {best.layer}; files {best.files}, network {best.network}, processes {best.processes},"
        f" memory {best.memory or 'open'}, pids {best.pids or 'open'}, processors {best.processors or 'open'}"
    )
    why = f" (not higher: {'; '.join(best.why)})" if best.why else ""
    yield Finding("isolation", "ok", message + why)


def check_workspaces(settings: Settings) -> Iterator[Finding]:
    """Attempts with a score have the workspace that was scored, and logs of runs are intact."""
    from core.rollouts import RunStore, WorkspaceStore

    store, runs = WorkspaceStore(settings.workspaces_dir), RunStore(settings.rollouts_dir).all()
    scored = [one for run in runs for one in run.attempts() if one.score is not None and one.workspace is not None]
    missing = [one for one in scored if not store.has(str(one.workspace))]
    removed = store.removed() if missing else {}
    by_retention = sum(one.workspace in removed for one in missing)
    if len(missing) > by_retention:
        what = f"{len(missing) - by_retention} of {len(scored)} scored attempts have lost their final workspace"
        yield Finding("workspaces", "bad", what, "restore the folder workspaces from a backup")
    if by_retention:
        what = f"retention removed the final workspaces of {by_retention} of {len(scored)} scored attempts"
        yield Finding("workspaces", "warn", what, "raise workspace_days and workspace_gib to keep more")
    if scored and not missing:
        yield Finding("workspaces", "ok", f"{len(scored)} scored attempts have theirs")
    known = {run.folder.name for run in runs}
    for folder in sorted(settings.rollouts_dir.glob("*/")):
        if folder.name not in known:
            yield Finding("rollouts", "bad", f"{folder.name}/run.json can't be read", "restore the file from a backup")
    for run in runs:
        if run.reader.n_damaged:
            what = f"{run.reader.n_damaged} lines of {run.folder.name}/attempts.log are damaged"
            yield Finding("rollouts", "bad", what, "restore the file from a backup")


def check_pool(settings: Settings, *, running: bool) -> Iterator[Finding]:
    """The pool's file and all its values can be read, and the opinions log is complete."""
    from core.errors import StudioError
    from core.pool.upkeep.opinionlog import inspect
    from core.pool.upkeep.recovery import check_recoverable, find_read_error, read_place

    path = settings.pool_path
    if not running:
        try:
            check_recoverable(path, settings.journal_dir, settings.opinions_dir)
        except StudioError as error:
            yield Finding("pool", "bad", error.message, error.hint)
            return
        if path.exists():
            wrong = find_read_error(path)
            mend = "claw-studio doctor --rebuild rebuilds it from journal and opinions log"
            yield Finding("pool", "bad", wrong, mend) if wrong else Finding("pool", "ok", "every value can be read")
    if not settings.opinions_dir.exists():
        return
    try:
        opinions = inspect(settings.opinions_dir, known=None if running else read_place(path))
    except StudioError as error:
        yield Finding("opinions log", "bad", error.message, error.hint)
        return
    if opinions.generation is None:
        mend = (
            "start the studio: it creates one"
            if not running
            else "stop the studio and run claw-studio doctor --renew-log"
        )
        yield Finding("opinions log", "warn", "there is no complete log", mend)
    elif opinions.missing:
        what = f"{opinions.missing} of {opinions.last} records are damaged or missing"
        yield Finding("opinions log", "bad", what, "stop the studio and run claw-studio doctor --renew-log")
    elif opinions.plans_damaged:
        what = f"plans of batches are damaged at {opinions.plans_damaged} places; everything else is intact"
        yield Finding("opinions log", "bad", what, "a backup of the data folder may have them")
    else:
        noun = "record" if opinions.n_records == 1 else "records"
        yield Finding("opinions log", "ok", f"{opinions.n_records} {noun}, none missing")
