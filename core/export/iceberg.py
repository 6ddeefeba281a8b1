"""Registers a dataset of steps (``core.export.dataset``) in an Apache Iceberg catalogue: one snapshot per dataset.

The table gets the Parquet files as they are; nothing is copied or rewritten, so the folder must stay where it is, at a
path that all readers see. Spark, Trino, Daft, DuckDB and pyiceberg read the table. The catalogue is pyiceberg's (extra
``iceberg``): SQL, REST, Glue, Hive, as its documentation describes them.

The snapshot's summary names what it holds: ``claw.dataset`` (the fingerprint), ``claw.plan``, ``claw.recipe``,
``claw.rows``. A dataset whose fingerprint a snapshot of the table has adds nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from core.errors import Conflict, InvalidInput
from core.export.parts import StepDataset

FINGERPRINT = "claw.dataset"
TRIES = 5


@dataclass(frozen=True, slots=True)
class Registered:
    """A dataset in a table.

    Attributes:
        table: its identifier.
        snapshot_id: the snapshot that has the dataset.
        fingerprint: of the dataset.
        n_rows: steps of the dataset.
        added: whether this call made the snapshot; False: the table had the dataset.
    """

    table: str
    snapshot_id: int
    fingerprint: str
    n_rows: int
    added: bool


def fingerprint(dataset: StepDataset) -> str:
    """SHA-256 of the plan's hash and the parts' hashes: equal for two exports of the same bytes."""
    parts = [part["sha256"] for part in dataset.head["parts"]]
    return hashlib.sha256(orjson.dumps([dataset.head["manifest"]["plan"]["hash"], parts])).hexdigest()


def register(
    folder: Path, table: str, *, catalog: str = "default", properties: Mapping[str, str] | None = None
) -> Registered:
    """Add a dataset's files to a table, which is made if it is missing.

    Args:
        folder: the dataset of steps.
        table: ``NAMESPACE.NAME``.
        catalog: its name in pyiceberg's settings (``~/.pyiceberg.yaml``, ``PYICEBERG_CATALOG__NAME__URI``).
        properties: settings of the catalogue, in place of those, such as ``{"uri": "sqlite:////data/catalog.db",
            "warehouse": "file:///data/warehouse"}``.

    Raises:
        InvalidInput: pyiceberg is not installed, there is no such catalogue, the table has other columns, or a file of
            the dataset was changed.
        Conflict: others write to the table all the time.
    """
    try:
        from pyiceberg.exceptions import CommitFailedException
    except ImportError as error:
        raise InvalidInput(
            "pyiceberg is not installed", field="catalog", hint="pip install 'claw-studio[iceberg]'"
        ) from error
    if "." not in table.strip("."):
        raise InvalidInput(f"{table!r} names no namespace", field="table", hint="NAMESPACE.NAME, such as claw.steps")
    dataset = StepDataset.open(folder.absolute())
    _check_files(dataset)
    mark = fingerprint(dataset)
    stored = _table(catalog, dict(properties or {}), table, dataset)
    for _ in range(TRIES):
        if (snapshot := _snapshot_with(stored, mark)) is not None:
            return Registered(table, snapshot, mark, dataset.head["n_rows"], added=False)
        try:
            stored.add_files([str(path) for path in dataset.files()], snapshot_properties=_summary(dataset, mark))
        except CommitFailedException:
            stored.refresh()
            continue
        except ValueError as error:
            raise InvalidInput(
                f"the dataset does not fit table {table}: {error}",
                field="table",
                hint="name another table, or one that this version of the studio made",
            ) from error
        snapshot = _snapshot_with(stored, mark)
        assert snapshot is not None, "the commit made it"
        return Registered(table, snapshot, mark, dataset.head["n_rows"], added=True)
    raise Conflict(f"table {table} was changed by others {TRIES} times", field="table", hint="try again later")


def _check_files(dataset: StepDataset) -> None:
    for path, part in zip(dataset.files(), dataset.head["parts"], strict=True):
        try:
            with path.open("rb") as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == part["sha256"]
        except OSError:
            same = False
        if not same:
            raise InvalidInput(
                f"{path} is missing, or was changed after it was written", field="dataset", hint="export it again"
            )


def _table(catalog: str, properties: dict[str, str], table: str, dataset: StepDataset) -> Any:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import TableAlreadyExistsError

    try:
        loaded = load_catalog(catalog, **properties)
    except Exception as error:  # what a catalogue raises is its driver's
        raise InvalidInput(
            f"catalogue {catalog!r} can't be opened: {error}",
            field="catalog",
            hint="name it in ~/.pyiceberg.yaml, or give uri=... and warehouse=... as properties",
        ) from error
    loaded.create_namespace_if_not_exists(table.rpartition(".")[0])
    if not loaded.table_exists(table):
        try:
            return loaded.create_table(table, schema=pq.read_schema(dataset.files()[0]))
        except TableAlreadyExistsError:
            pass  # Another process made it meanwhile.
    return loaded.load_table(table)


def _snapshot_with(table: Any, mark: str) -> int | None:
    """The snapshot of the table's current history whose summary has this fingerprint."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    snapshot = table.current_snapshot()
    while snapshot is not None:
        if snapshot.summary is not None and snapshot.summary.additional_properties.get(FINGERPRINT) == mark:
            return int(snapshot.snapshot_id)
        snapshot = by_id.get(snapshot.parent_snapshot_id)
    return None


def _summary(dataset: StepDataset, mark: str) -> dict[str, str]:
    manifest = dataset.head["manifest"]
    return {
        FINGERPRINT: mark,
        "claw.plan": manifest["plan"]["hash"],
        "claw.recipe": orjson.dumps(manifest["recipe"]).decode(),
        "claw.rows": str(dataset.head["n_rows"]),
        "claw.created-at": dataset.head["created_at"],
    }
