"""Commands of ``claw-studio`` about what the pool holds: SQL, dataset versions, upkeep.

They speak HTTP to the service that owns the data folder, like the commands of ``core.cli``, which adds them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from core.client import StudioClient
from core.errors import InvalidInput
from core.printable import print_json, printable

DataOption = Annotated[Path | None, typer.Option("--data", help="Data folder: journal, pool, exports")]
ViewOption = Annotated[str | None, typer.Option(help="A saved view by its name; the rest narrows it")]
Connect = Callable[[Path | None], AbstractContextManager[StudioClient]]
"""A client of the service that owns this data folder."""
Own = Callable[[Path | None], AbstractContextManager[Path]]
"""The data folder, owned while the block runs."""
AUTHOR = "cli"


def add_to(app: typer.Typer, connect: Connect) -> None:
    """Register the commands."""

    @app.command()
    def sql(
        query: Annotated[str, typer.Argument(help="One SELECT; without one the tables are listed")] = "",
        data: DataOption = None,
        limit: Annotated[int, typer.Option(help="Most rows")] = 1000,
        timeout: Annotated[float, typer.Option(help="Most seconds")] = 10.0,
        json_: Annotated[bool, typer.Option("--json", help="One JSON object per row")] = False,
    ) -> None:
        """Ask the pool in SQL; it reads only."""
        with connect(data) as client:
            if not query.strip():
                for table in client.call("GET", "/api/v1/sql")["tables"]:
                    print(printable(f"{table['table']:24} {table['doc']}"))
                    for column in table["columns"]:
                        print(f"    {column['name']:22} {column['type']:14} {column['doc']}".rstrip())
                return
            body = {"sql": query, "limit": limit, "timeout_s": timeout}
            answer = client.call("POST", "/api/v1/sql", body)
        names = [column["name"] for column in answer["columns"]]
        if json_:
            for row in answer["rows"]:
                print_json(dict(zip(names, row, strict=True)))
        else:
            print_table(names, answer["rows"])
        if answer["truncated"]:
            print(f"... more than {answer['n_rows']} rows", file=sys.stderr)

    @app.command()
    def views(data: DataOption = None) -> None:
        """Saved views, one line of JSON each; export and freeze take them by name."""
        with connect(data) as client:
            for view in client.call("GET", "/api/v1/views")["views"]:
                print_json(view)

    @app.command()
    def freeze(
        name: Annotated[str, typer.Argument(help="Name of the version")],
        data: DataOption = None,
        where: Annotated[str, typer.Option(help="Expression over step columns")] = "",
        filters: Annotated[str, typer.Option(help="Typed filters as JSON")] = "{}",
        view: ViewOption = None,
        recipe: Annotated[str, typer.Option(help='Recipe as JSON, e.g. \'{"algorithm": "sft"}\'')] = "{}",
        parent: Annotated[str | None, typer.Option(help="Version that it follows")] = None,
        redact: Annotated[
            str, typer.Option(help="Rules with commas between: secrets, email, api_key, ...; none looks for nothing")
        ] = "",
        pattern: Annotated[list[str] | None, typer.Option(help="Own rule: NAME=REGEX; may be repeated")] = None,
        drop: Annotated[bool, typer.Option("--drop", help="A step with a hit goes, in place of being masked")] = False,
        note: Annotated[str | None, typer.Option(help="Why")] = None,
        author: Annotated[str, typer.Option(help="Who")] = AUTHOR,
    ) -> None:
        """Freeze a view under a name: immutable, hashed, exported to the same bytes for good."""
        body: dict[str, Any] = {
            "name": name,
            "view": view_json(view, filters, where),
            "recipe": json_object(recipe, "recipe"),
            "parent": parent,
            "author": author,
            "note": note,
        }
        if redact or pattern:
            own = [one.partition("=") for one in pattern or ()]
            body["redaction"] = {
                "rules": [rule.strip() for rule in redact.split(",") if rule.strip()],
                "patterns": {rule: text for rule, _, text in own},
                "action": "drop" if drop else "mask",
            }
        with connect(data) as client:
            print_json(client.call("POST", "/api/v1/datasets", body))

    @app.command()
    def versions(data: DataOption = None) -> None:
        """Dataset versions, newest first, one line of JSON each."""
        with connect(data) as client:
            for version in client.call("GET", "/api/v1/datasets")["datasets"]:
                print_json(version)

    @app.command()
    def diff(
        a: Annotated[str, typer.Argument(help="Version")],
        b: Annotated[str, typer.Argument(help="Version that is compared with it")],
        data: DataOption = None,
        limit: Annotated[int, typer.Option(help="Most steps that are listed")] = 100,
    ) -> None:
        """What version B has otherwise than version A."""
        with connect(data) as client:
            query = {"to": b, "limit": limit}
            print_json(client.call("GET", f"/api/v1/datasets/{quote(a, safe='')}/diff", query=query))

    @app.command("export-version")
    def export_version(
        name: Annotated[str, typer.Argument(help="Version")],
        format: Annotated[str, typer.Argument(help="trl_sft, steps_parquet, ...")],
        data: DataOption = None,
        out: Annotated[Path | None, typer.Option(help="Folder to write to")] = None,
        recipe: Annotated[str | None, typer.Option(help="Another recipe than the frozen one, as JSON")] = None,
    ) -> None:
        """Write a dataset version's files: the same bytes each time."""
        body = {
            "format": format,
            "out": str(out.absolute()) if out else None,
            "recipe": None if recipe is None else json_object(recipe, "recipe"),
        }
        with connect(data) as client:
            print_json(client.call("POST", f"/api/v1/datasets/{quote(name, safe='')}/export", body))


def add_upkeep_to(app: typer.Typer, connect: Connect, own: Own) -> None:
    """Register the commands that keep the data folder well."""

    @app.command()
    def backup(
        out: Annotated[Path, typer.Argument(help="Folder to make")],
        data: DataOption = None,
    ) -> None:
        """Copy pool and journal while the studio runs; prints what was copied."""
        with connect(data) as client:
            manifest = client.call("POST", "/api/v1/backup", {"out": str(out.absolute())})
        n_bytes = sum(one["n_bytes"] for one in manifest["files"].values())
        print_json(
            {
                "out": manifest["out"],
                "n_steps": manifest["n_steps"],
                "n_files": len(manifest["files"]),
                "n_bytes": n_bytes,
            }
        )

    @app.command()
    def restore(
        source: Annotated[Path, typer.Argument(help="A backup")],
        data: DataOption = None,
    ) -> None:
        """Put a backup into a data folder that holds no pool and no journal."""
        from core.backup import restore as put_back

        with own(data) as data_dir:
            manifest = put_back(source, data_dir)
        print_json({"data": str(data_dir), "n_steps": manifest["n_steps"], "created_at": manifest["created_at"]})

    @app.command()
    def retain(
        data: DataOption = None,
        older_than_days: Annotated[float | None, typer.Option(help="Nothing was added for so long")] = None,
        consumed: Annotated[int | None, typer.Option(help="Held by so many acknowledged batches")] = None,
        max_gb: Annotated[float | None, typer.Option(help="The oldest go until the pool is about so big")] = None,
        channel: Annotated[str | None, typer.Option(help="Only of this channel")] = None,
        apply: Annotated[bool, typer.Option("--apply", help="Delete; else this is a preview")] = False,
        journal: Annotated[bool, typer.Option("--journal", help="With --apply: old journal segments too")] = False,
        author: Annotated[str, typer.Option(help="Who")] = AUTHOR,
    ) -> None:
        """Let go of trajectories that are old, consumed or too much; never of what is in a dataset version."""
        body = {
            "older_than_days": older_than_days,
            "consumed": consumed,
            "max_bytes": None if max_gb is None else int(max_gb * 10**9),
            "channel": channel,
            "apply": apply,
            "journal": journal,
            "author": author,
        }
        with connect(data) as client:
            report = client.call("POST", "/api/v1/retention", {**body, "apply": False})
            if apply:
                report = client.call("POST", "/api/v1/retention", {**body, "confirm": report["confirm"]})
            print_json(report)

    trash = typer.Typer(help="What was deleted and can still be restored.", no_args_is_help=True)

    @trash.command("list")
    def trash_list(data: DataOption = None) -> None:
        """One line of JSON per run, newest first."""
        with connect(data) as client:
            for run in client.call("GET", "/api/v1/trash")["runs"]:
                print_json(run)

    @trash.command("restore")
    def trash_restore(
        run_uid: Annotated[str, typer.Argument(help="As trash list names it")],
        data: DataOption = None,
        author: Annotated[str, typer.Option(help="Who")] = AUTHOR,
    ) -> None:
        """Put back what a retention run deleted: steps, what was said of them, journal segments."""
        with connect(data) as client:
            path = f"/api/v1/trash/{quote(run_uid, safe='')}/restore"
            print_json(client.call("POST", path, {"author": author}))

    @trash.command("empty")
    def trash_empty(data: DataOption = None) -> None:
        """Delete for good all that could be restored."""
        with connect(data) as client:
            confirm = client.call("GET", "/api/v1/trash")["confirm"]
            print_json(client.call("POST", "/api/v1/trash/empty", {"confirm": confirm}))

    app.add_typer(trash, name="trash")


def json_object(text: str, field: str) -> dict[str, Any]:
    """A JSON object of the command line. InvalidInput names the option."""
    try:
        value = json.loads(text)
    except ValueError as err:
        raise InvalidInput(f"not JSON: {err}", field=field) from err
    if not isinstance(value, dict):
        raise InvalidInput("not a JSON object", field=field)
    return value


def print_table(names: list[str], rows: list[list[Any]], *, width: int = 60) -> None:
    """Columns beside each other; what is longer than ``width`` ends in an ellipsis (``--json`` prints all)."""
    names = [printable(name) for name in names]
    shown = [["" if value is None else _cell(value, width) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *shown, strict=True)] if names else []
    for row in [names, ["-" * size for size in widths], *shown]:
        print("  ".join(value.ljust(size) for value, size in zip(row, widths, strict=True)).rstrip())


def _cell(value: Any, width: int) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = printable(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def view_json(view: str | None, filters: str, where: str) -> dict[str, Any]:
    """A view on the wire, of what a command was given. InvalidInput when the filters aren't a JSON object."""
    named = {} if view is None else {"saved_view": view}
    return {"filters": {**json_object(filters, "filters"), **named}, "where": where}
