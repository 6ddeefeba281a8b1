"""``claw-studio``: serve, import, export, doctor.

Import and export speak HTTP to the service that owns the data folder; where none runs, one is opened for the length
of the command. So both ways take the same code path, and a second owner never arises.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import typer

from core.config import Settings
from core.errors import InvalidInput, StudioError

app = typer.Typer(name="claw-studio", help="Data studio for agentic reinforcement learning.", no_args_is_help=True)

DataOption = Annotated[Path | None, typer.Option("--data", help="Data folder: journal, pool, exports")]
IMPORT_LINES = 2000


def read_settings(**overrides: Any) -> Settings:
    """Environment and studio.toml, overridden by what the command line names."""
    from pydantic import ValidationError

    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as err:
        first = err.errors(include_url=False)[0]
        raise InvalidInput(first["msg"], field=".".join(map(str, first["loc"]))) from err


@app.command()
def serve(
    data: DataOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 picks a free one")] = None,
    engine: Annotated[str | None, typer.Option(help="'local', a base URL, or litellm:provider/model")] = None,
    verbose: Annotated[bool, typer.Option(help="Log every call")] = False,
) -> None:
    """Run gateway, ingest and pool without a screen; prints one ready line of JSON."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())

    from core.service import Service

    service = Service.open(read_settings(data_dir=data, host=host, port=port, engine=engine))
    try:
        ready = {
            "ready": True,
            "base_url": service.base_url,
            "pid": os.getpid(),
            "data": str(service.settings.data_dir),
        }
        print(json.dumps(ready), flush=True)
        stopped.wait()
    finally:
        service.close()


class Client:
    """The few calls the commands make, over plain HTTP."""

    def __init__(self, base_url: str, api_key: str | None) -> None:
        self.base_url = base_url
        self.api_key = api_key

    def post(self, path: str, body: bytes) -> dict[str, Any]:
        """POST and return JSON; an error of the service is raised as it was meant there."""
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = Request(self.base_url + path, data=body, headers=headers, method="POST")
        try:
            with urlopen(request, timeout=3600) as response:
                result: dict[str, Any] = json.load(response)
                return result
        except HTTPError as err:
            detail = json.loads(err.read() or b"{}")
            raise StudioError(
                detail.get("message", str(err)), field=detail.get("field"), hint=detail.get("hint")
            ) from err


@contextmanager
def connect(settings: Settings) -> Iterator[Client]:
    """A client of the service that owns the data folder, or of one opened for the occasion."""
    from core.owner import running_service

    owner = running_service(settings.data_dir)
    if owner is not None:
        yield Client(owner["base_url"], settings.api_key)
        return
    from core.service import Service

    service = Service.open(settings.model_copy(update={"host": "127.0.0.1", "port": 0}))
    try:
        yield Client(service.base_url, settings.api_key)
    finally:
        service.close()


@app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="JSON lines, one step each (fields as in POST /api/v1/steps)")],
    data: DataOption = None,
    channel: Annotated[str | None, typer.Option(help="Channel of steps that name none")] = None,
) -> None:
    """Bring steps in; the same file twice changes nothing."""
    if not file.is_file():
        raise InvalidInput(f"{file} is not a file", field="file")
    total = 0
    query = f"?channel={channel}" if channel else ""
    with connect(read_settings(data_dir=data)) as client:
        for first_line, block in _blocks(file):
            try:
                total += client.post("/api/v1/imports" + query, block)["accepted"]
            except StudioError as err:
                err.message += f" (in the block that starts at line {first_line}; {total} steps before it are in)"
                raise
    print(json.dumps({"imported": total}))


def _blocks(file: Path) -> Iterator[tuple[int, bytes]]:
    """Blocks of whole lines with the number of their first line."""
    lines: list[bytes] = []
    first = 1
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            lines.append(line)
            if len(lines) == IMPORT_LINES:
                yield first, b"".join(lines)
                lines, first = [], number + 1
    if any(line.strip() for line in lines):
        yield first, b"".join(lines)


@app.command()
def export(
    format: Annotated[str, typer.Argument(help="trl_sft, steps_parquet, ...")],
    data: DataOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to")] = None,
    where: Annotated[str, typer.Option(help="Expression over step columns")] = "",
    filters: Annotated[str, typer.Option(help="Typed filters as JSON")] = "{}",
    recipe: Annotated[str, typer.Option(help='Recipe as JSON, e.g. \'{"algorithm": "sft"}\'')] = "{}",
) -> None:
    """Write the plan of a view and a recipe as files; prints where they are."""
    body = {
        "format": format,
        "out": str(out.absolute()) if out else None,
        "view": {"filters": _json_object(filters, "filters"), "where": where},
        "recipe": _json_object(recipe, "recipe"),
    }
    with connect(read_settings(data_dir=data)) as client:
        print(json.dumps(client.post("/api/v1/exports", json.dumps(body).encode())))


def _json_object(text: str, field: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as err:
        raise InvalidInput(f"not JSON: {err}", field=field) from err
    if not isinstance(value, dict):
        raise InvalidInput("not a JSON object", field=field)
    return value


@app.command()
def doctor(
    data: DataOption = None,
    json_: Annotated[bool, typer.Option("--json", help="Machine-readable")] = False,
) -> None:
    """Say what is wrong with ports, disk, engine, tokenizer and packages, and the mend; exit code 1 if anything is."""
    from core.doctor import Finding, diagnose
    from core.owner import running_service

    settings = read_settings(data_dir=data)
    owner = running_service(settings.data_dir)
    findings = diagnose(settings, port_is_ours=owner is not None)
    if owner is not None:
        findings.append(Finding("service", "ok", f"running: process {owner['pid']} at {owner['base_url']}"))
    if json_:
        print(json.dumps([finding.as_dict() for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.state:4}  {finding.check:20} {finding.message}")
            if finding.mend:
                print(f"{'':26} → {finding.mend}")
    raise typer.Exit(1 if any(finding.state == "bad" for finding in findings) else 0)


def main() -> NoReturn:
    """Entry point: a StudioError becomes one line on stderr and exit code 2."""
    try:
        app()
    except StudioError as err:
        field = f"{err.field}: " if err.field else ""
        hint = f" ({err.hint})" if err.hint else ""
        print(f"claw-studio: {field}{err.message}{hint}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


if __name__ == "__main__":
    main()
