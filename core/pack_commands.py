"""Commands of ``claw-studio pack``: show, lint, convert and import task packs. They read files and need no service."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from core.commands import DataOption
from core.errors import NotFound
from core.packs import WRITES, Pack, read_pack, with_split, write_pack
from core.packs.library import PackLibrary
from core.packs.model import CHECKERS, FILE_FIELDS, PackTask, field_json
from core.printable import print_json, printable

pack_app = typer.Typer(help="Show, check and convert task packs.", no_args_is_help=True)

PathArgument = Annotated[Path, typer.Argument(help="Folder or file of tasks; the format is detected")]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable")]


@pack_app.command("show")
def show(
    path: PathArgument,
    task: Annotated[str | None, typer.Option(help="Id of one task to print as JSON")] = None,
    json_: JsonOption = False,
) -> None:
    """Print what a pack contains: format, version, number of tasks, files, checks, categories."""
    pack = read_pack(path)
    if task is not None:
        if task not in pack.by_id:
            raise NotFound(
                f"{pack.name} has no task {task!r}", field="task", hint=f"the first is {pack.tasks[0].task_id}"
            )
        print_json(_task_json(pack.by_id[task]))
        return
    summary = summary_of(pack)
    if json_:
        print_json(summary)
        return
    for name, value in summary.items():
        text = ", ".join(f"{key} {n}" for key, n in value.items()) if isinstance(value, dict) else value
        print(printable(f"{name:20} {text}"))


def summary_of(pack: Pack) -> dict[str, Any]:
    """Counts of a pack. Sizes are in bytes; ``input_files`` and ``input_bytes`` are per task."""
    n_files = [len(task.input_files) for task in pack.tasks]
    n_bytes = [task.n_input_bytes for task in pack.tasks]
    return {
        "name": pack.name,
        "format": pack.format,
        "version": pack.version,
        "content_hash": pack.content_hash,
        "tasks": len(pack.tasks),
        "input_files": _spread(n_files),
        "input_bytes": _spread(n_bytes),
        "checkers": _counted(task.checker for task in pack.tasks),
        "with_rubric": sum(bool(task.rules or task.rubric) for task in pack.tasks),
        "need_image": sum(task.image is not None for task in pack.tasks),
        "splits": _counted(task.split for task in pack.tasks),
        "categories": _counted(task.category for task in pack.tasks),
    }


def _spread(values: list[int]) -> dict[str, float]:
    from statistics import median

    return {"min": min(values), "median": median(values), "max": max(values)}


def _counted(values: Any) -> dict[str, int]:
    return {str(value or "none"): n for value, n in Counter(values).most_common()}


def _task_json(task: PackTask) -> dict[str, Any]:
    from dataclasses import fields

    shown = {one.name: field_json(task, one.name) for one in fields(task) if one.name not in FILE_FIELDS}
    sizes = {name: {path: len(one.content) for path, one in getattr(task, name).items()} for name in FILE_FIELDS}
    check = CHECKERS.get(task.checker or "", "no check by code")
    return {**shown, **sizes, "content_hash": task.content_hash, "check": check}


@pack_app.command("lint")
def lint_(
    path: PathArgument,
    threshold: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Lowest similarity of near-duplicates, in [0, 1]")
    ] = 0.8,
    run: Annotated[bool, typer.Option("--run", help="Also run every check on its untouched workspace")] = False,
    isolation: Annotated[str, typer.Option(help="Lowest level of isolation of --run")] = "process",
    timeout: Annotated[float, typer.Option(min=0.1, help="Limit of each check of --run, seconds")] = 120.0,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Checks that --run runs at the same time")] = 2,
    json_: JsonOption = False,
) -> None:
    """Check a pack. Exit code 1 if there are errors. Programs of the pack run only with --run, in sandboxes."""
    from core.packs.lint import lint

    pack = read_pack(path)
    findings = lint(pack, threshold=threshold)
    if run:
        from core.packs.lint.run import lint_by_running

        findings += lint_by_running(pack, isolation=isolation, timeout_s=timeout, workers=workers)
    for one in findings:
        if json_:
            print_json(one.as_dict())
        else:
            print(printable(f"{one.level:8} {one.check:21} {' '.join(one.task_ids)}: {one.message}"))
    if not json_:
        print(f"{len(pack.tasks)} tasks, {len(findings)} findings")
    raise typer.Exit(1 if any(one.level == "error" for one in findings) else 0)


@pack_app.command("convert")
def convert(
    path: PathArgument,
    out: Annotated[Path, typer.Argument(help="New folder, or new .jsonl file for hub")],
    format: Annotated[str, typer.Option("--format", help=f"One of {', '.join(WRITES)}")] = "clawgym",
    val: Annotated[
        float | None, typer.Option(help="Share of validation tasks; near-duplicates stay on one side")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split")] = 0,
) -> None:
    """Write a pack in another format. Reading the result gives the same tasks."""
    pack = read_pack(path)
    if val is not None:
        from core.packs.lint.duplicates import near_duplicates

        pairs = [(one.task_ids[0], one.task_ids[1]) for one in near_duplicates(pack.tasks)]
        pack = with_split(pack, val, seed=seed, together=pairs)
    notes = write_pack(pack, out, format)
    print_json({"out": str(out), "tasks": len(pack.tasks), "version": pack.version, "notes": notes})


def add_library_to(app: typer.Typer, packs_dir: Callable[[Path | None], Path]) -> None:
    """Register the commands of stored packs. ``packs_dir`` gives the folder of packs of a data folder."""

    @app.command("import")
    def import_(
        path: PathArgument,
        name: Annotated[
            str | None, typer.Option(help="Name of the pack; by default that of the folder or file")
        ] = None,
        data: DataOption = None,
    ) -> None:
        """Store a pack in the data folder, where the Tasks page and runs find it by name; prints its version."""
        pack = read_pack(path)
        pack = pack if name is None else replace(pack, name=name)
        print_json(asdict(PackLibrary(packs_dir(data)).keep(pack, now=time.time())))

    @app.command("list")
    def list_(data: DataOption = None) -> None:
        """Print one line of JSON per stored pack version, newest first."""
        for entry in PackLibrary(packs_dir(data)).entries():
            print_json(asdict(entry))
