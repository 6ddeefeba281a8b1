"""Exports a dataset of steps part by part, and joins the parts to the file that the studio writes of the plan.

A format whose rows depend on one prompt group each (``Exporter.by_group``) is written of every part by the format's own
writer. JSON lines of all parts, one after another, are the lines of the plan. Row groups of Parquet files are copied
into one file with a new footer (``core.export.footer``).
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.errors import InvalidInput, StudioError
from core.export import EXPORTERS
from core.export.base import (
    Difference,
    Exporter,
    ExportResult,
    Written,
    atomic,
    checked_source,
    combined,
    export_path,
    finished,
    naming,
    no_progress,
    write_manifest,
)
from core.export.footer import COPY_BYTES, join_parquet
from core.export.parts import StepDataset
from core.export.sink import Sink


def _join_lines(paths: Sequence[Path], sink: Sink) -> None:
    for path in paths:
        with path.open("rb") as file:
            while piece := file.read(COPY_BYTES):
                sink.write(piece)


JOINS: Mapping[str, Callable[[Sequence[Path], Sink], None]] = {".jsonl": _join_lines, ".parquet": join_parquet}
"""File name extension -> writes the content of all parts, in order, as one file."""


def joinable() -> list[str]:
    """Names of the formats that can be written part by part."""
    return [name for name, exporter in EXPORTERS.items() if exporter.by_group and exporter.suffix in JOINS]


def exporter_of(name: str) -> Exporter:
    """The format. InvalidInput: there is none of this name, or its rows are not those of groups."""
    if name not in joinable():
        why = "has rows or numbers that depend on more than one prompt group" if name in EXPORTERS else "does not exist"
        raise InvalidInput(
            f"the format {name!r} {why}, so it can't be written part by part",
            field="format",
            hint=f"one of {', '.join(joinable())}; or export in the studio",
        )
    return EXPORTERS[name]


@dataclass(frozen=True, slots=True)
class PartDone:
    """A part that was written, or why it could not be.

    Attributes:
        number: of the part.
        path: its file.
        sha256, n_bytes: of the file.
        n_rows, n_tokens, n_loss_tokens: as in ``Written``.
        differences: as in ``Written``: (what, flag, n).
        refusal: the fields of a StudioError, if the format refuses the part.
    """

    number: int
    path: str = ""
    sha256: str = ""
    n_bytes: int = 0
    n_rows: int = 0
    n_tokens: int = 0
    n_loss_tokens: int = 0
    differences: tuple[tuple[str, str | None, int | None], ...] = ()
    refusal: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PartDone:
        """From ``to_json``."""
        differences = tuple((what, flag, n) for what, flag, n in data["differences"])
        return cls(**{**data, "differences": differences})


def export_part(folder: Path, number: int, format_name: str, settings: Mapping[str, str], out_dir: Path) -> PartDone:
    """Write one part of a dataset in a format. The same part gives the same bytes, however often it is written.

    Args:
        folder: the dataset.
        number: of the part.
        format_name: one of ``joinable()``.
        settings: checked options of the format.
        out_dir: folder for the part's file, which appears when it is complete.
    """
    exporter = EXPORTERS[format_name]
    path = out_dir / f"part-{number:05d}{exporter.suffix}"
    try:
        plan, source = StepDataset.open(folder).part(number)
        reading = checked_source(exporter, plan, source)
        # Complete when it appears, as a task may be run twice; not synced to disk, since the joined file is.
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with naming("write to", out_dir), temporary.open("wb") as file, Sink(file) as sink:
            written = exporter.write(plan, reading, sink, settings, no_progress)
            sha256, n_bytes = sink.sha256, sink.n_bytes
        temporary.replace(path)
    except StudioError as error:
        refusal = {"message": error.message, "field": error.field, "hint": error.hint}
        return PartDone(number, refusal=refusal)
    return PartDone(
        number=number,
        path=str(path),
        sha256=sha256,
        n_bytes=n_bytes,
        n_rows=written.n_rows,
        n_tokens=written.n_tokens,
        n_loss_tokens=written.n_loss_tokens,
        differences=tuple((one.what, one.flag, one.n) for one in written.differences),
    )


Run = Callable[[Path, Sequence[int], str, Mapping[str, str], Path], Iterable[PartDone]]
"""Runs ``export_part`` for each of these numbers, in any order, and gives the results; arguments as there."""


def one_after_another(
    folder: Path, numbers: Sequence[int], format_name: str, settings: Mapping[str, str], out_dir: Path
) -> Iterator[PartDone]:
    """Write the parts in this process."""
    return (export_part(folder, number, format_name, settings, out_dir) for number in numbers)


def export_dataset(
    folder: Path,
    format_name: str,
    out_dir: Path,
    *,
    options: Mapping[str, Any] | None = None,
    run: Run = one_after_another,
    clock: Callable[[], float] = time.time,
) -> ExportResult:
    """Write a dataset in a format: the file and manifest that ``core.export.export`` writes of its plan.

    Args:
        folder: the dataset of steps.
        format_name: one of ``joinable()``.
        out_dir: folder for the file; made if missing. Parts are written beside it, and removed at the end.
        options: the format's options by name.
        run: writes the parts. Where other machines do, they see both folders at the same paths.
        clock: time for the manifest.

    Raises:
        InvalidInput: the dataset, the format or an option is invalid, the format refuses a step, or a folder can't be
            written.
    """
    dataset, exporter = StepDataset.open(folder), exporter_of(format_name)
    settings, plan = exporter.settings(options or {}), dataset.plan()
    path = export_path(exporter, plan, out_dir, settings)
    if (done := finished(path, plan)) is not None:
        return done
    with naming("make", out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        parts_dir = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".parts", dir=out_dir))
    try:
        parts = sorted(
            run(folder, range(dataset.n_parts), format_name, settings, parts_dir), key=lambda part: part.number
        )
        _check(parts, dataset.n_parts)
        with naming("write to", out_dir), atomic(path) as file, Sink(file) as sink:
            JOINS[exporter.suffix]([Path(part.path) for part in parts], sink)
    finally:
        shutil.rmtree(parts_dir, ignore_errors=True)
    differences = combined(Difference(*one) for part in parts for one in part.differences)
    written = Written(
        n_rows=sum(part.n_rows for part in parts),
        n_tokens=sum(part.n_tokens for part in parts),
        n_loss_tokens=sum(part.n_loss_tokens for part in parts),
        differences=tuple(differences),
    )
    return write_manifest(exporter, plan, path, sink, written, settings, dataset.head["manifest"], clock)


def _check(parts: Sequence[PartDone], n_parts: int) -> None:
    """Refuse results that are not all parts, once each, with the bytes that were written."""
    for part in parts:
        if part.refusal is not None:
            raise InvalidInput(**part.refusal)
    if [part.number for part in parts] != list(range(n_parts)):
        raise StudioError(f"{len(parts)} of {n_parts} parts were written", hint="run the export again")
    for part in parts:
        try:
            with Path(part.path).open("rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == part.sha256
        except OSError:
            same = False
        if not same:
            raise InvalidInput(
                f"part {part.number} is not at {part.path} with the bytes that were written",
                field="out",
                hint="name a folder that all nodes see at the same path",
            )
