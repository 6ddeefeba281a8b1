"""The command line ``claw-studio``: opens the pages, or runs serve, import, export, keys, engines, doctor.

Commands send HTTP requests to the service that owns the data folder. If none runs, the command opens one until it ends.
Both cases use the same code, and there is never a second owner.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from core.client import StudioClient, trusting
from core.cluster.commands import cluster_app
from core.commands import (
    DataOption,
    ViewOption,
    add_demo_to,
    add_to,
    add_upkeep_to,
    format_options,
    json_object,
    view_json,
)
from core.config import Settings
from core.errors import InvalidInput, StudioError
from core.logs import set_up
from core.pack_commands import add_library_to, pack_app
from core.printable import print_json, printable
from core.report_commands import add_report_to
from core.rollout_commands import add_rollout_to
from core.synthesis_commands import synthesis_app
from core.workers.spawn import start_early

app = typer.Typer(name="claw-studio", help="Data studio for agentic reinforcement learning.")

TIMEOUT_S = 3600.0
"""HTTP timeout of a command, seconds; long, because an export responds only when its files are written."""
EVERY_STEP = '{"algorithm": "sft", "options": {"min_reward": null}}'
"""The recipe of steps that a critic values: failures too, scored or not."""


def read_settings(**overrides: Any) -> Settings:
    """Settings from the environment and studio.toml, overridden by command-line options."""
    from pydantic import ValidationError

    settings = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**settings)
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        raise InvalidInput(first["msg"], field=".".join(map(str, first["loc"]))) from err


@app.callback(invoke_without_command=True)
def open_studio(context: typer.Context) -> None:
    """Data studio for agentic reinforcement learning. Without a command, opens the studio's pages."""
    if context.invoked_subcommand is not None:
        return
    # The package is located by name and not imported: core must not import the pages.
    package = find_spec("studio")
    if package is None or package.origin is None:
        raise InvalidInput(
            "this installation has no pages",
            field="studio",
            hint="pip install claw-studio with its dependencies, or serve",
        )
    folder = str(Path(package.origin).parent)
    os.execv(sys.executable, [sys.executable, "-m", "streamlit", "run", folder])


@app.command()
def serve(
    data: DataOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 picks a free one")] = None,
    engine: Annotated[
        str | None, typer.Option(help="'local', base URLs separated by commas, or litellm:provider/model")
    ] = None,
    streaming: Annotated[
        str | None, typer.Option(help="Streams: auto, whole (made from the complete answer), relay (the engine's own)")
    ] = None,
    gateways: Annotated[int | None, typer.Option(help="Number of gateway processes beside the main process")] = None,
    log_format: Annotated[str | None, typer.Option(help="text, or json: one object per line on stderr")] = None,
    verbose: Annotated[bool, typer.Option(help="Log every call")] = False,
) -> None:
    """Run gateway, ingest and pool without pages. Prints one line of JSON when ready."""
    settings = read_settings(
        data_dir=data,
        host=host,
        port=port,
        engine=engine,
        engine_streaming=streaming,
        gateways=gateways,
        log_format=log_format,
    )
    set_up(logging.INFO if verbose else logging.WARNING, settings.log_format)
    wait_for_end = await_end()
    # Before the imports below, so that both processes import at the same time.
    start_early(settings.gateways)

    from core.garbage import no_collection, settle_memory

    with no_collection():
        from core.service import Service

    service = Service.open(settings)
    try:
        ready = {
            "ready": True,
            "base_url": service.base_url,
            "pid": os.getpid(),
            "data": str(service.settings.data_dir),
        }
        settle_memory()
        print(json.dumps(ready), flush=True)
        service.prepare_engines()
        wait_for_end()
    finally:
        service.close()


def await_end() -> Callable[[], int]:
    """Handle SIGTERM and SIGINT from now on. Returns a function that waits for one of them and returns its number.

    A handler can interrupt the main thread while it holds an Event's lock, and ``Event.set`` would then deadlock.
    ``SimpleQueue.put`` is reentrant.
    """
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _: signals.put(number))
    return signals.get


@contextmanager
def connect(settings: Settings) -> Iterator[StudioClient]:
    """A client of the service that owns the data folder; if none runs, of a temporary one."""
    from core.owner import running_service

    owner = running_service(settings.data_dir)
    if owner is not None:
        tls = None if settings.tls_cert is None else trusting(settings.tls_cert)
        with StudioClient(owner["base_url"], api_key=settings.api_key, timeout_s=TIMEOUT_S, tls=tls) as client:
            yield client
        return
    from core.service import Service

    service = Service.open(
        settings.model_copy(update={"host": "127.0.0.1", "port": 0, "gateways": 0, "tls_cert": None, "tls_key": None})
    )
    try:
        with StudioClient(service.base_url, api_key=settings.api_key, timeout_s=TIMEOUT_S) as client:
            yield client
    finally:
        service.close()


@contextmanager
def locked_folder(data: Path | None) -> Iterator[Path]:
    """Lock the data folder while the block runs. Raises AlreadyOwned if a service owns it."""
    from core.owner import OwnerLock

    directory = read_settings(data_dir=data).data_dir
    lock = OwnerLock.acquire(directory)
    try:
        yield directory
    finally:
        lock.release()


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Files to read")],
    data: DataOption = None,
    format: Annotated[str | None, typer.Option("--format", help="Format; by default detected for each file")] = None,
    channel: Annotated[str | None, typer.Option(help="Channel of steps without one")] = None,
    agent: Annotated[str | None, typer.Option(help="Agent of steps without one")] = None,
    all_or_nothing: Annotated[
        bool, typer.Option("--all-or-nothing", help="Import nothing if any record is invalid")
    ] = False,
) -> None:
    """Import steps from other programs' logs. Importing twice changes nothing. Exit code 1 if records were left out."""
    from core.imports import run

    with connect(read_settings(data_dir=data)) as client:
        report = run(
            files,
            client,
            format=format,
            channel=channel,
            agent=agent,
            all_or_nothing=all_or_nothing,
            progress=_progress,
        )
    for problem in report.problems:
        field = f"{problem.field}: " if problem.field else ""
        print(printable(f"{problem.where}: {field}{problem.message}"), file=sys.stderr)
    if report.n_problems > len(report.problems):
        print(f"... and {report.n_problems - len(report.problems)} more", file=sys.stderr)
    summary = report.as_dict()
    del summary["problems"]
    print_json({"imported": report.n_steps, **summary})
    raise typer.Exit(1 if report.n_problems else 0)


def _progress(report: Any) -> None:
    if sys.stderr.isatty():
        print(f"\r{report.n_records} records, {report.n_steps} new steps", end="", file=sys.stderr, flush=True)


@app.command()
def export(
    format: Annotated[str, typer.Argument(help="trl_sft, steps_parquet, ...")],
    data: DataOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to")] = None,
    where: Annotated[str, typer.Option(help="Expression over step columns")] = "",
    filters: Annotated[str, typer.Option(help="Typed filters as JSON")] = "{}",
    view: ViewOption = None,
    dataset: Annotated[str | None, typer.Option(help="A frozen dataset version, in place of a view")] = None,
    recipe: Annotated[str, typer.Option(help='Recipe as JSON, e.g. \'{"algorithm": "sft"}\'')] = "{}",
    option: Annotated[list[str] | None, typer.Option(help="Option NAME=VALUE of the format; may be repeated")] = None,
) -> None:
    """Write the plan of a view and a recipe to files; prints their paths."""
    body = {
        "format": format,
        "options": format_options(option),
        "out": str(out.absolute()) if out else None,
        "view": view_json(view, filters, where),
        "recipe": {**json_object(recipe, "recipe"), **({} if dataset is None else {"dataset": dataset})},
    }
    with connect(read_settings(data_dir=data)) as client:
        print_json(client.call("POST", "/api/v1/exports", body))


@app.command()
def values(
    model: Annotated[Path, typer.Argument(help="Folder of a transformers model with a value head (one label)")],
    name: Annotated[
        str | None, typer.Option(help="Its name in recipes (value_model); by default the folder's name")
    ] = None,
    data: DataOption = None,
    where: Annotated[str, typer.Option(help="Expression over step columns")] = "",
    recipe: Annotated[str, typer.Option(help="Recipe as JSON; selects the steps")] = EVERY_STEP,
) -> None:
    """Compute a critic's value of the state before each step of a plan, for step_gae and token_gae (value_model)."""
    body = {
        "model_dir": str(model.absolute()),
        "name": name or model.name,
        "view": {"where": where},
        "recipe": json_object(recipe, "recipe"),
    }
    with connect(read_settings(data_dir=data)) as client:
        print_json(client.call("POST", "/api/v1/values/compute", body))


keys_app = typer.Typer(help="List and revoke session keys.", no_args_is_help=True)


@keys_app.command("list")
def keys_list(
    data: DataOption = None,
    trajectory: Annotated[str | None, typer.Option(help="Only keys of this trajectory")] = None,
) -> None:
    """Print one line of JSON per key, newest first. The secret itself is shown only when a key is created."""
    query = {"limit": 10_000, **({"trajectory_uid": trajectory} if trajectory else {})}
    with connect(read_settings(data_dir=data)) as client:
        for session in client.call("GET", "/api/v1/sessions", query=query)["sessions"]:
            print_json(session)


@keys_app.command("revoke")
def keys_revoke(
    name: Annotated[str, typer.Argument(help="A key_id, or a trajectory_uid for all its keys")],
    data: DataOption = None,
) -> None:
    """Revoke a key permanently; prints the ids of the keys that were valid until now."""
    with connect(read_settings(data_dir=data)) as client:
        print_json({"revoked": client.revoke(name)})


@app.command()
def engines(data: DataOption = None) -> None:
    """Print one line of JSON per engine: health, probed capabilities, calls in flight and waiting, streaming mode."""
    with connect(read_settings(data_dir=data)) as client:
        for engine in client.call("GET", "/api/v1/stats")["engines"]:
            print_json(engine)


@app.command()
def doctor(
    data: DataOption = None,
    json_: Annotated[bool, typer.Option("--json", help="Machine-readable")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Compare every step with its journal record and its hash")
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Rebuild the pool's file from journal and opinions log; keeps the old one"),
    ] = False,
    renew_log: Annotated[
        bool, typer.Option("--renew-log", help="Write a new opinions log from the pool, if the log is damaged")
    ] = False,
) -> None:
    """Check ports, disk, engine, tokenizer and packages. Prints problems with fixes; exit code 1 if there are any."""
    from core.doctor import Finding, check_isolation, deep_findings, diagnose
    from core.owner import running_service

    settings = read_settings(data_dir=data)
    if rebuild or renew_log:
        with locked_folder(data):
            if rebuild:
                _rebuild(settings, json_)
            else:
                _renew_log(settings)
    owner = running_service(settings.data_dir)
    sync = None
    if owner is not None:
        with connect(settings) as client:
            sync = client.policy_state()["sync"]
    # Without a running service, the environment has the pages' future address.
    pages = owner.get("pages_address") if owner is not None else os.environ.get("STREAMLIT_SERVER_ADDRESS")
    findings = diagnose(settings, port_is_ours=owner is not None, sync=sync, pages_address=pages)
    findings += check_isolation()  # runs programs, so it is not part of what pages ask for
    if owner is not None:
        findings.append(Finding("service", "ok", f"running: process {owner['pid']} at {owner['base_url']}"))
    if deep:
        with connect(settings) as client:
            findings += deep_findings(client.call("POST", "/api/v1/integrity", {}))
    if json_:
        print_json([finding.as_dict() for finding in findings])
    else:
        for finding in findings:
            print(printable(f"{finding.state:4}  {finding.check:20} {finding.message}"))
            if finding.mend:
                print(printable(f"{'':26} → {finding.mend}"))
    raise typer.Exit(1 if any(finding.state == "bad" for finding in findings) else 0)


def _rebuild(settings: Settings, as_json: bool) -> None:
    from core.rebuild import rebuild

    def show(stage: str, done: int, total: int) -> None:
        if sys.stderr.isatty() or done == total:
            print(f"\r{stage}: {done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    report = rebuild(settings, progress=show)
    if as_json:
        print(json.dumps(report), file=sys.stderr)
        return
    print("the pool was rebuilt from the journal and the opinions log")
    for name, n in report["after"].items():
        before = "?" if report["before"] is None else report["before"][name]
        print(f"      {name:18} {before:>10} → {n}")
    replay = report["replay"]
    if replay["n_without_target"] or replay["n_missing"]:
        print(
            f"      {replay['n_without_target']} rows of opinions refer to steps that are not in the journal;"
            f" {replay['n_missing']} records of the log are missing"
        )
    if report["kept_aside"]:
        print(f"      the old file is kept as {report['kept_aside']}")


def _renew_log(settings: Settings) -> None:
    from core.rebuild import renew_log

    renew_log(settings)
    print("wrote a new opinions log with the pool's contents; the old one is kept beside it")


@cache
def command_line() -> typer.Typer:
    """``app`` with the commands of other modules."""
    app.add_typer(keys_app, name="keys")
    add_library_to(pack_app, lambda data: read_settings(data_dir=data).packs_dir)
    app.add_typer(pack_app, name="pack")
    add_report_to(app, lambda data: connect(read_settings(data_dir=data)))
    app.add_typer(
        synthesis_app(
            lambda data: connect(read_settings(data_dir=data)), lambda data: read_settings(data_dir=data).data_dir
        ),
        name="synthesise",
    )
    app.add_typer(cluster_app(lambda data: connect(read_settings(data_dir=data)), read_settings), name="cluster")
    add_to(app, lambda data: connect(read_settings(data_dir=data)))
    add_demo_to(app, lambda data: connect(read_settings(data_dir=data)))
    add_rollout_to(app, lambda data: connect(read_settings(data_dir=data)))
    add_upkeep_to(app, lambda data: connect(read_settings(data_dir=data)), locked_folder)
    return app


def main() -> NoReturn:
    """Entry point: a StudioError becomes one line on stderr and exit code 2."""
    command_line()
    set_up(logging.WARNING, "text")
    try:
        app()
    except StudioError as err:
        field = f"{err.field}: " if err.field else ""
        hint = f" ({err.hint})" if err.hint else ""
        print(printable(f"claw-studio: {field}{err.message}{hint}"), file=sys.stderr)
        sys.exit(2)
    except Exception:
        logging.getLogger("claw-studio").exception("unexpected error")
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
