"""Commands of ``claw-studio`` for the pool's data: SQL, views, dataset versions, backup, retention, trash.

They send HTTP requests to the service that owns the data folder. ``core.cli`` registers them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from core.client import StudioClient
from core.errors import InvalidInput, StudioError
from core.printable import print_json, printable

DataOption = Annotated[Path | None, typer.Option("--data", help="Data folder: journal, pool, exports")]
ViewOption = Annotated[str | None, typer.Option(help="Name of a saved view; other conditions narrow it")]
Connect = Callable[[Path | None], AbstractContextManager[StudioClient]]
"""A client of the service that owns this data folder."""
LockedFolder = Callable[[Path | None], AbstractContextManager[Path]]
"""Locks the data folder while the block runs."""
AUTHOR = "cli"


def add_to(app: typer.Typer, connect: Connect) -> None:
    """Register the commands."""

    @app.command()
    def sql(
        query: Annotated[str, typer.Argument(help="One SELECT; if empty, the tables are listed")] = "",
        data: DataOption = None,
        limit: Annotated[int, typer.Option(help="Maximum number of rows")] = 1000,
        timeout: Annotated[float, typer.Option(help="Time limit, seconds")] = 10.0,
        json_: Annotated[bool, typer.Option("--json", help="One JSON object per row")] = False,
    ) -> None:
        """Query the pool in SQL (read-only)."""
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
        """Print one line of JSON per saved view. Export and freeze take them by name."""
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
        parent: Annotated[str | None, typer.Option(help="The version before this one")] = None,
        redact: Annotated[
            str, typer.Option(help="Rules separated by commas: secrets, email, api_key, ...; none: no redaction")
        ] = "",
        pattern: Annotated[list[str] | None, typer.Option(help="Custom rule NAME=REGEX; may be repeated")] = None,
        drop: Annotated[bool, typer.Option("--drop", help="Leave out steps with a hit instead of masking it")] = False,
        note: Annotated[str | None, typer.Option(help="Reason")] = None,
        author: Annotated[str, typer.Option(help="Author")] = AUTHOR,
    ) -> None:
        """Freeze a view as a named dataset version: immutable, hashed, always exported to the same bytes."""
        body: dict[str, Any] = {
            "name": name,
            "view": view_json(view, filters, where),
            "recipe": json_object(recipe, "recipe"),
            "parent": parent,
            "author": author,
            "note": note,
        }
        if redact or pattern:
            own_patterns = [one.partition("=") for one in pattern or ()]
            body["redaction"] = {
                "rules": [rule.strip() for rule in redact.split(",") if rule.strip()],
                "patterns": {rule: text for rule, _, text in own_patterns},
                "action": "drop" if drop else "mask",
            }
        with connect(data) as client:
            print_json(client.call("POST", "/api/v1/datasets", body))

    @app.command()
    def versions(data: DataOption = None) -> None:
        """Print one line of JSON per dataset version, newest first."""
        with connect(data) as client:
            for version in client.call("GET", "/api/v1/datasets")["datasets"]:
                print_json(version)

    @app.command()
    def diff(
        a: Annotated[str, typer.Argument(help="Version")],
        b: Annotated[str, typer.Argument(help="Version to compare with it")],
        data: DataOption = None,
        limit: Annotated[int, typer.Option(help="Maximum number of listed steps")] = 100,
    ) -> None:
        """Print the changes from version A to version B."""
        with connect(data) as client:
            query = {"to": b, "limit": limit}
            print_json(client.call("GET", f"/api/v1/datasets/{quote(a, safe='')}/diff", query=query))

    @app.command("export-version")
    def export_version(
        name: Annotated[str, typer.Argument(help="Version")],
        format: Annotated[str, typer.Argument(help="trl_sft, steps_parquet, ...")],
        data: DataOption = None,
        out: Annotated[Path | None, typer.Option(help="Folder to write to")] = None,
        recipe: Annotated[str | None, typer.Option(help="Recipe to use instead of the frozen one, as JSON")] = None,
        option: Annotated[
            list[str] | None, typer.Option(help="Option NAME=VALUE of the format; may be repeated")
        ] = None,
    ) -> None:
        """Write a dataset version to files: the same bytes each time."""
        body = {
            "format": format,
            "out": str(out.absolute()) if out else None,
            "recipe": None if recipe is None else json_object(recipe, "recipe"),
            "options": format_options(option),
        }
        with connect(data) as client:
            print_json(client.call("POST", f"/api/v1/datasets/{quote(name, safe='')}/export", body))

    @app.command("export-dataset")
    def export_dataset(
        folder: Annotated[Path, typer.Argument(help="Folder that claw-studio export steps_dataset wrote")],
        format: Annotated[str, typer.Argument(help="trl_sft, steps_parquet, ...: formats whose rows are per group")],
        out: Annotated[Path, typer.Option(help="Folder to write to")],
        option: Annotated[
            list[str] | None, typer.Option(help="Option NAME=VALUE of the format; may be repeated")
        ] = None,
        ray: Annotated[
            str | None,
            typer.Option(help="Run on this Ray cluster: auto, or host:port. Its nodes see both folders at these paths"),
        ] = None,
    ) -> None:
        """Write a dataset of steps in a format: the file that export writes of its plan, byte for byte. No studio."""
        from core.cluster.jobs import export_on_ray
        from core.export.joining import export_dataset

        options = format_options(option)
        if ray is None:
            result = export_dataset(folder, format, out, options=options)
        else:
            result = export_on_ray(folder, format, out, options=options, address=ray)
        print_json(
            {
                "path": str(result.path),
                "manifest_path": str(result.manifest_path),
                "n_rows": result.n_rows,
                "n_tokens": result.n_tokens,
            }
        )

    @app.command("register-dataset")
    def register_dataset(
        folder: Annotated[Path, typer.Argument(help="Folder that claw-studio export steps_dataset wrote")],
        table: Annotated[str, typer.Argument(help="Table as NAMESPACE.NAME; made if it is missing")],
        catalog: Annotated[str, typer.Option(help="Name of the catalogue in pyiceberg's settings")] = "default",
        setting: Annotated[
            list[str] | None,
            typer.Option(help="NAME=VALUE for the catalogue, such as uri=sqlite:////data/catalog.db; may be repeated"),
        ] = None,
    ) -> None:
        """Register a dataset of steps in an Iceberg catalogue (extra iceberg): one snapshot, no copy. No studio."""
        from core.export.iceberg import register

        print_json(asdict(register(folder, table, catalog=catalog, properties=format_options(setting))))


def add_upkeep_to(app: typer.Typer, connect: Connect, locked_folder: LockedFolder) -> None:
    """Register the commands for maintenance of the data folder."""

    @app.command()
    def backup(
        out: Annotated[Path, typer.Argument(help="Folder to create")],
        data: DataOption = None,
    ) -> None:
        """Back up the data folder while the studio runs; prints a summary. Exports and models are left out."""
        with connect(data) as client:
            manifest = client.call("POST", "/api/v1/backup", {"out": str(out.absolute())})
        n_bytes = sum(one["n_bytes"] for one in manifest["files"].values())
        print_json(
            {
                "out": manifest["out"],
                "n_steps": manifest["n_steps"],
                "n_files": len(manifest["files"]),
                "n_bytes": n_bytes,
                "damaged": manifest["damaged"],
            }
        )

    @app.command()
    def restore(
        source: Annotated[Path, typer.Argument(help="A backup")],
        data: DataOption = None,
    ) -> None:
        """Restore a backup into a data folder without data."""
        from core.backup import restore as restore_folder

        with locked_folder(data) as data_dir:
            manifest = restore_folder(source, data_dir)
        print_json({"data": str(data_dir), "n_steps": manifest["n_steps"], "created_at": manifest["created_at"]})

    @app.command()
    def retain(
        data: DataOption = None,
        older_than_days: Annotated[
            float | None, typer.Option(help="Trajectories to which nothing was added for this many days")
        ] = None,
        consumed: Annotated[
            int | None, typer.Option(help="Trajectories in at least this many acknowledged batches")
        ] = None,
        max_gb: Annotated[
            float | None, typer.Option(help="Delete the oldest until the pool has about this size, GB")
        ] = None,
        channel: Annotated[str | None, typer.Option(help="Only trajectories of this channel")] = None,
        apply: Annotated[bool, typer.Option("--apply", help="Delete; without it, print a preview")] = False,
        journal: Annotated[bool, typer.Option("--journal", help="With --apply: also old journal segments")] = False,
        author: Annotated[str, typer.Option(help="Author")] = AUTHOR,
    ) -> None:
        """Delete old, consumed or excess trajectories. Trajectories in a dataset version are never deleted."""
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

    trash = typer.Typer(help="List, restore and empty the trash.", no_args_is_help=True)

    @trash.command("list")
    def trash_list(data: DataOption = None) -> None:
        """Print one line of JSON per retention run, newest first."""
        with connect(data) as client:
            for run in client.call("GET", "/api/v1/trash")["runs"]:
                print_json(run)

    @trash.command("restore")
    def trash_restore(
        run_uid: Annotated[str, typer.Argument(help="From trash list")],
        data: DataOption = None,
        author: Annotated[str, typer.Option(help="Author")] = AUTHOR,
    ) -> None:
        """Restore what a retention run deleted: steps, opinions on them, journal segments."""
        with connect(data) as client:
            path = f"/api/v1/trash/{quote(run_uid, safe='')}/restore"
            print_json(client.call("POST", path, {"author": author}))

    @trash.command("empty")
    def trash_empty(data: DataOption = None) -> None:
        """Delete everything in the trash permanently."""
        with connect(data) as client:
            confirm = client.call("GET", "/api/v1/trash")["confirm"]
            print_json(client.call("POST", "/api/v1/trash/empty", {"confirm": confirm}))

    app.add_typer(trash, name="trash")


POLL_S = 0.5


def add_demo_to(app: typer.Typer, connect: Connect) -> None:
    """Register the demo command."""

    @app.command()
    def demo(
        learn: Annotated[bool, typer.Option("--learn", help="Train the shipped policy through the studio")] = False,
        data: DataOption = None,
        updates: Annotated[int, typer.Option(min=1, help="Updates of the weights")] = 15,
        seed: Annotated[int, typer.Option(min=0, help="Seed of tasks, samples and trainer")] = 0,
        max_staleness: Annotated[
            int, typer.Option(min=0, help="Versions that rollouts may be behind; above 0 they do not wait for updates")
        ] = 0,
        control: Annotated[
            str | None, typer.Option(help="shuffle: a second run follows with shuffled rewards, which only drifts")
        ] = None,
        json_: Annotated[bool, typer.Option("--json", help="One JSON object per evaluation and update")] = False,
    ) -> None:
        """Train a small policy on this machine and print its success on held-out tasks. Ctrl-C stops it."""
        if not learn:
            raise InvalidInput("there is one demo here", field="demo", hint="claw-studio demo --learn")
        with connect(data) as client:
            wanted = {"updates": updates, "seed": seed, "max_staleness": max_staleness, "control": control}
            client.call("POST", "/api/v1/learning/demo", wanted)
            n_shown, running = 0, True
            try:
                while running:
                    time.sleep(POLL_S)
                    answer = client.call("GET", "/api/v1/learning/demo", repeat=True)
                    running = answer["running"]
                    for event in answer["events"][n_shown:]:
                        n_shown += 1
                        print_json(event) if json_ else print(printable(event_text(event)), flush=True)
            finally:
                client.call("DELETE", "/api/v1/learning/demo")
        if answer["error"]:
            raise StudioError(answer["error"])


def event_text(event: dict[str, Any]) -> str:
    """A progress message of the learning demo as a line of text."""
    match event["event"]:
        case "run":
            control = f", {event['control']}" if event["control"] else ""
            return f"{event['name']}: seed {event['seed']}, {event['updates']} updates{control}"
        case "evaluation":
            how = "greedy" if event["temperature"] == 0 else "temperature 1"
            return f"  version {event['version']}: {event['success']:.1%} of held-out tasks solved ({how})"
        case "update":
            reward = "unknown" if event["reward"] is None else f"{event['reward']:.1%}"
            seconds = f"{event['rollouts_s']:.1f} s rollouts, {event['trainer_s']:.1f} s trainer"
            return f"  update {event['update']}: reward {reward}; {seconds}"
    return json.dumps(event)


def json_object(text: str, field: str) -> dict[str, Any]:
    """Parse a JSON object from a command-line option. InvalidInput names the option."""
    try:
        value = json.loads(text)
    except ValueError as err:
        raise InvalidInput(f"not JSON: {err}", field=field) from err
    if not isinstance(value, dict):
        raise InvalidInput("not a JSON object", field=field)
    return value


def format_options(given: list[str] | None) -> dict[str, str]:
    """Options of an export format from NAME=VALUE. InvalidInput if one has no ``=``."""
    parts = [one.partition("=") for one in given or ()]
    for name, equals, _ in parts:
        if not equals or not name:
            raise InvalidInput(f"{name!r} is no option", field="option", hint="NAME=VALUE, such as merge=trajectory")
    return {name: value for name, _, value in parts}


def print_table(names: list[str], rows: list[list[Any]], *, width: int = 60) -> None:
    """Print aligned columns; values longer than ``width`` are cut with an ellipsis (``--json`` prints all)."""
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
    """The JSON of a view from a command's options. InvalidInput if the filters are not a JSON object."""
    named = {} if view is None else {"saved_view": view}
    return {"filters": {**json_object(filters, "filters"), **named}, "where": where}
