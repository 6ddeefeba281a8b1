"""Reads files of rows: JSONL, a JSON array or Parquet; each row in the form that its fields show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.packs import clawgym_rows, plain_rows, verl_rows
from core.packs.fields import as_list, as_object, located, parse_json, plain
from core.packs.model import Pack, PackTask
from core.packs.tree import MAX_ROWS_FILE, MAX_TASK, read_file

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
MAX_TASKS = 200_000
Parse = Callable[[Mapping[str, Any], int], PackTask]


def form_of(row: Mapping[str, Any]) -> tuple[str, Parse] | None:
    """Name and parser of the form that a row has."""
    clawgym = clawgym_rows.form_of(row)
    if clawgym is not None:
        return clawgym, clawgym_rows.parse
    for module in (verl_rows, plain_rows):
        if module.recognises(row):
            return module.NAME, module.parse
    return None


def read(path: Path) -> Pack:
    """Read a file of tasks. All rows must have the form of the first.

    Raises:
        InvalidInput: a row can't be read; the error names file, line and field.
    """
    tasks: list[PackTask] = []
    form: tuple[str, Parse] | None = None
    for number, (where, row) in enumerate(_rows(path)):
        if number >= MAX_TASKS:
            raise InvalidInput(f"{path.name} has more than {MAX_TASKS} tasks", field="path", hint="divide the file")
        form = form or form_of(row)
        if form is None:
            raise InvalidInput(
                f"{where}: a row with the fields {', '.join(sorted(row))[:200]} is no task",
                field="prompt",
                hint="docs/packs.md lists the forms",
            )
        try:
            tasks.append(form[1](row, number))
        except InvalidInput as error:
            raise located(error, where) from error
    return Pack(path.stem, tasks, form[0] if form else "")


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.suffix == ".parquet":
        yield from _parquet_rows(path)
        return
    content = read_file(path, limit=MAX_ROWS_FILE).content
    if path.suffix == ".json":
        rows = as_list(parse_json(content, path.name), path.name)
        yield from ((f"{path.name}[{index}]", as_object(row, path.name)) for index, row in enumerate(rows))
        return
    for number, line in enumerate(content.split(b"\n"), start=1):
        if len(line) > MAX_TASK:
            raise InvalidInput(f"{path.name}:{number} is longer than {MAX_TASK >> 20} MiB", field="path")
        if line.strip():
            where = f"{path.name}:{number}"
            yield where, as_object(parse_json(line, where), where)


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.is_symlink():
        raise InvalidInput(f"{path} is a link", field="path", hint="links are not followed: name the file itself")
    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    where = f"{path.name}[{number}]"
                    yield where, _without_nulls(plain(row, where))
                    number += 1
    except (OSError, pa.ArrowException) as error:
        raise InvalidInput(f"{path} can't be read: {error}", field="path", hint="a Parquet file") from error


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """The row without its missing fields."""
    return {name: value for name, value in row.items() if value is not None}


def write_jsonl(pack: Pack, path: Path) -> None:
    """Write a pack as a new file of ClawGym's hub form, one task a line."""
    with path.open("x", encoding="utf-8") as stream:
        for task in pack.tasks:
            stream.write(json.dumps(clawgym_rows.row_of(task), ensure_ascii=False) + "\n")
