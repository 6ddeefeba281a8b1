"""Datasets of steps in an Iceberg catalogue: read by pyiceberg and by DuckDB's Iceberg reader, snapshot by snapshot."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from core.batch import arrays
from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.cli import main
from core.errors import InvalidInput
from core.export import export
from core.export.iceberg import register
from core.export.parts import StepDataset
from core.pool import Pool
from core.types import View
from tests.batch.keeping_all import SFT_ALL
from tests.left_out import missing

from .uneven_pool import T0, fill

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("CLAW_ICEBERG_PYTHON", ROOT / ".cache" / "trainers" / "iceberg" / "bin" / "python"))
DUCKDB = ROOT / ".cache" / "clients" / "duckdb-iceberg" / "bin" / "python"
"""A DuckDB before 2.0: on PyPI, the extension has no newer one."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Two datasets of several files that share no step."""
    folder = tmp_path_factory.mktemp("iceberg")
    pool = Pool.open(folder / "pool.duckdb", memory="512MB", threads=1, clock=lambda: T0 + 1000)
    fill(pool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHUNK_TOKENS", 12)
        halves = ("prompt_uid < 'm8'", "prompt_uid >= 'm8'")
        plans = [plan(pool, View(where=half), parse_recipe(SFT_ALL)) for half in halves]
        yield [export(one, pool, "steps_dataset", folder, options={"part_tokens": "1"}).path for one in plans]
    pool.close()


def rows_of(files: list[Path]) -> list[dict[str, Any]]:
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def result_of(command: list[Any], **environment: str) -> Any:
    """What a program prints as its result."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))


def by_uid(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: str(row["step_uid"]))


@pytest.mark.trainers
def test_each_dataset_is_one_snapshot_and_reads_as_it_was_written(datasets: list[Path], tmp_path: Path) -> None:
    if not PYTHON.exists():
        missing(
            "pyiceberg is not installed, so no catalogue was made: .ci/run installs it into .cache/trainers/iceberg"
        )
    first, second = datasets
    command = [PYTHON, Path(__file__).with_name("in_iceberg.py"), f"sqlite:///{tmp_path}/catalog.db"]
    command += [f"file://{tmp_path}/warehouse", "claw.steps", first, second, first, second]
    result = result_of(command, PYTHONPATH=str(ROOT))
    one, two, again, and_again = result["registered"]
    assert [one["added"], two["added"], again["added"], and_again["added"]] == [True, True, False, False]
    assert (again["snapshot_id"], and_again["snapshot_id"]) == (one["snapshot_id"], two["snapshot_id"])
    assert one["fingerprint"] == again["fingerprint"] != two["fingerprint"]
    early, late = result["snapshots"]
    assert [early["id"], late["id"]] == [one["snapshot_id"], two["snapshot_id"]]
    assert [one["summary"]["claw.dataset"] for one in (early, late)] == [one["fingerprint"], two["fingerprint"]]
    for folder, snapshot in zip(datasets, (early, late), strict=True):
        head = StepDataset.open(folder).head
        assert snapshot["summary"]["claw.plan"] == head["manifest"]["plan"]["hash"]
        assert snapshot["summary"]["added-records"] == snapshot["summary"]["claw.rows"] == str(head["n_rows"])
    files = [StepDataset.open(folder).files() for folder in datasets]
    assert max(map(len, files)) > 1
    for written, snapshot in ((files[0], early), (files[0] + files[1], late)):
        assert sorted(path.removeprefix("file://") for path in snapshot["files"]) == sorted(map(str, written))
        assert by_uid(snapshot["rows"]) == by_uid(rows_of(written))
    lengths = duckdb.execute("SELECT sum(len(response_ids)) FROM read_parquet(?)", [late["files"]]).fetchone()
    assert lengths == (math.fsum(len(row["response_ids"]) for row in late["rows"]),)
    if not DUCKDB.exists():
        missing("a DuckDB with its Iceberg extension is not in .cache/clients/duckdb-iceberg: .ci/run installs it")
    read = result_of([DUCKDB, Path(__file__).with_name("in_duckdb.py"), result["metadata"]])
    for snapshot in (early, late):
        assert by_uid(read[str(snapshot["id"])]) == by_uid(snapshot["rows"])


def test_without_the_extra_the_error_names_it(
    datasets: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    monkeypatch.setitem(sys.modules, "pyiceberg.exceptions", None)
    with pytest.raises(InvalidInput) as refused:
        register(datasets[0], "claw.steps")
    assert refused.value.hint == "pip install 'claw-studio[iceberg]'"
    monkeypatch.setattr(sys, "argv", ["claw-studio", "register-dataset", str(datasets[0]), "claw.steps"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "claw-studio[iceberg]" in capsys.readouterr().err
