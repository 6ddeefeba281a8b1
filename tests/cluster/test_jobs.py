"""Exports as Ray Data jobs on fake nodes, in the environment that has Ray."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from core.batch import arrays
from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.export import export
from core.export.parts import StepDataset
from core.pool import Pool
from core.types import View
from tests.batch.keeping_all import SFT_ALL
from tests.cluster.installed import ROOT, ray_python
from tests.export.uneven_pool import T0, fill

pytestmark = pytest.mark.trainers

CHUNK_TOKENS = 12
FORMATS = ("trl_sft", "openai_messages", "group_trees", "group_statistics")


@dataclass
class Written:
    """A dataset, and by format the hash of the studio's export of the same plan."""

    folder: Path
    sha256: dict[str, str]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    folder = tmp_path_factory.mktemp("jobs")
    pool = Pool.open(folder / "pool.duckdb", memory="512MB", threads=1, clock=lambda: T0 + 1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "CHUNK_TOKENS", CHUNK_TOKENS)
        made = plan(fill(pool), View(), parse_recipe(SFT_ALL))
        dataset = export(made, pool, "steps_dataset", folder, options={"part_tokens": "1"}).path
        exports = {name: export(made, pool, name, folder / "studio").manifest["sha256"] for name in FORMATS}
    yield Written(dataset, exports)
    pool.close()


def result_of(program: str, *arguments: Any) -> dict[str, Any]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [ray_python(), Path(__file__).with_name(program), *map(str, arguments)],
        capture_output=True, text=True, timeout=280, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return result


def test_any_number_of_nodes_and_a_killed_one_give_the_studios_bytes(written: Written, tmp_path: Path) -> None:
    assert StepDataset.open(written.folder).n_parts >= 4
    result = result_of("in_ray_jobs.py", written.folder, tmp_path / "out", CHUNK_TOKENS, *FORMATS)
    assert result["sha256"] == {name: [sha256] * 4 for name, sha256 in written.sha256.items()}
    assert result["had_begun"] is True and result["n_alive"] == 2
    # What a format refuses in a task is the error of the export: SFT assigns no advantages.
    assert result["refused"]["field"] == "recipe.algorithm"
