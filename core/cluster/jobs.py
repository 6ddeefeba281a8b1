"""Exports of a dataset of steps as Ray Data jobs: one task for each part, on any node of a Ray cluster.

The nodes need this package and see the dataset and the output folder at the same paths. A task writes the part's file
and gives back its hash, so no bytes of an export pass through Ray. If a node dies, Ray runs its tasks again elsewhere:
a part has the same bytes wherever it is written. The parts are joined where the job runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from core.errors import InvalidInput
from core.export.base import ExportResult
from core.export.joining import PartDone, export_dataset, export_part


def export_on_ray(
    folder: Path,
    format_name: str,
    out_dir: Path,
    *,
    options: Mapping[str, Any] | None = None,
    address: str | None = None,
    clock: Callable[[], float] = time.time,
) -> ExportResult:
    """Write a dataset in a format on a Ray cluster: the file and manifest of the studio's export, byte for byte.

    Args:
        folder: the dataset of steps, at a path that all nodes see.
        format_name: one of ``core.export.joining.joinable()``.
        out_dir: folder for the file, at a path that all nodes see.
        options: the format's options by name.
        address: of the cluster; None: the one that this process belongs to, as in ``ray job submit``.
        clock: time for the manifest.

    Raises:
        InvalidInput: Ray is not installed or there is no cluster; else as ``export_dataset``.
    """
    connect(address)
    return export_dataset(folder.absolute(), format_name, out_dir.absolute(), options=options, run=_on_ray, clock=clock)


def connect(address: str | None) -> None:
    """Join a Ray cluster, unless this process is in one already.

    Raises:
        InvalidInput: Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ImportError as error:
        raise InvalidInput(
            "Ray is not installed", field="address", hint="pip install 'claw-studio[ray]' in the version of the cluster"
        ) from error
    if ray.is_initialized():
        return
    try:
        ray.init(address=address or "auto", log_to_driver=False)
    except ConnectionError as error:
        raise InvalidInput(
            f"there is no Ray cluster at {address or 'auto'}",
            field="address",
            hint="ray start --head, or the address of the head node as HOST:PORT",
        ) from error


def _on_ray(
    folder: Path, numbers: Sequence[int], format_name: str, settings: Mapping[str, str], out_dir: Path
) -> Iterator[PartDone]:
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False

    def write(row: dict[str, Any]) -> dict[str, Any]:
        done = export_part(folder, int(row["number"]), format_name, dict(settings), out_dir)
        # JSON: a column of Arrow has one type in all rows, and most parts are not refused.
        return {"done": orjson.dumps(done.to_json())}

    # One part per block, so a task is one part.
    parts = ray.data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
    for row in parts.map(write, num_cpus=1).iter_rows():
        yield PartDone.from_json(orjson.loads(row["done"]))
