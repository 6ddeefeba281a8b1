"""Registers datasets of steps in an Iceberg catalogue and reads the table, in the environment that has pyiceberg.

    python in_iceberg.py CATALOG_URI WAREHOUSE TABLE DATASET...

Prints one line of JSON: the results of ``register``, the table's metadata file, and by snapshot its summary and what
pyiceberg's scan of it gives.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog

from core.errors import InvalidInput
from core.export.iceberg import register


def main() -> None:
    uri, warehouse, table, *datasets = sys.argv[1:]
    properties = {"uri": uri, "warehouse": warehouse}
    results: dict[str, Any] = {"registered": []}
    for folder in datasets:
        try:
            done = asdict(register(Path(folder), table, catalog="tests", properties=properties))
        except InvalidInput as error:
            done = {"refused": error.message, "field": error.field}
        results["registered"].append(done)
    stored = load_catalog("tests", **properties).load_table(table)
    results |= {"metadata": stored.metadata_location, "snapshots": []}
    for snapshot in stored.metadata.snapshots:
        rows = stored.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
        files = stored.inspect.files(snapshot.snapshot_id)["file_path"].to_pylist()
        summary = dict(snapshot.summary.additional_properties)
        results["snapshots"].append({"id": snapshot.snapshot_id, "rows": rows, "files": files, "summary": summary})
    print("RESULT " + json.dumps(results))


if __name__ == "__main__":
    main()
