"""Reads an Iceberg table with DuckDB's own Iceberg reader, in the environment that has a DuckDB with that extension.

    python in_duckdb.py METADATA.json

Prints one line of JSON: rows by snapshot id.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import duckdb


def main() -> None:
    """Load the packages' extensions, which are read from disk, and read every snapshot."""
    connection = duckdb.connect()
    for name in ("httpfs", "avro", "iceberg"):
        folder = Path(next(iter(import_module(f"duckdb_extension_{name}").__path__)))
        file = folder / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
        connection.execute(f"LOAD '{file}'")
    rows = {}
    metadata = sys.argv[1]
    for (snapshot,) in connection.execute("SELECT snapshot_id FROM iceberg_snapshots(?)", [metadata]).fetchall():
        read = connection.execute(f"FROM iceberg_scan(?, snapshot_from_id => {snapshot:d}::UBIGINT)", [metadata])
        names = [column[0] for column in read.description]
        rows[str(snapshot)] = [dict(zip(names, row, strict=True)) for row in read.fetchall()]
    print("RESULT " + json.dumps(rows))


if __name__ == "__main__":
    main()
