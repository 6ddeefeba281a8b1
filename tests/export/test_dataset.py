"""Datasets of steps: whole groups in each file, and exports of the parts that have the bytes of the plan's export."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from core.batch import arrays
from core.batch.datasets import freeze_version, version_plan
from core.batch.plan import Plan, plan
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput, StudioError
from core.export import EXPORTERS, export
from core.export.base import Written
from core.export.footer import join_parquet
from core.export.joining import PartDone, export_dataset, export_part, joinable
from core.export.parquet import write_row_groups
from core.export.parts import StepDataset
from core.export.sink import Sink
from core.pool import Pool
from core.pool.redaction.rules import parse_redaction
from core.serving.tokenizer import tokenizer_hash
from core.types import View
from tests.batch.keeping_all import SFT_ALL

from .conftest import conversation, done
from .uneven_pool import T0, fill

RECIPES: dict[str, dict[str, Any]] = {
    "trl_kto": {"algorithm": "kto"},
    "trl_grpo": {"algorithm": "dr_grpo"},
    "tinker": {"algorithm": "grpo"},
    "rllm": {"algorithm": "grpo"},
    "steps_parquet": {"algorithm": "grpo"},
}
"""Formats that need labels or advantages; the others get SFT."""
SFT = parse_recipe(SFT_ALL)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """The pool that is hard on trainers, and a trajectory whose messages are unknown. No test changes it."""
    path = tmp_path_factory.mktemp("dataset") / "pool.duckdb"
    pool = Pool.open(path, memory="512MB", threads=1, clock=lambda: T0 + 1000)
    own = {"messages": None, "tokenizer_hash": tokenizer_hash()}
    fill(pool).steps.append(conversation("silent", "silent", [([5, 6], [7, 8])], **own), completions=done("silent"))
    yield pool
    pool.close()


def plan_for(pool: Pool, name: str) -> Plan:
    view = View(where="trajectory_uid <> 'm7.c'") if name == "tinker" else View()
    return plan(pool, view, parse_recipe(RECIPES.get(name, SFT_ALL)))


def same_manifest(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Equal but for the time; the order of differences is theirs."""
    return {**one, "created_at": ""} == json.loads(json.dumps({**other, "created_at": ""}))


def test_joined_parts_are_the_plans_export(filled: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every format that can be joined, with row groups of whole groups and of parts of a group."""
    monkeypatch.setattr(arrays, "CHUNK_TOKENS", 12)
    for name in joinable():
        made = plan_for(filled, name)
        folder = export(made, filled, "steps_dataset", tmp_path, options={"part_tokens": "1"}).path
        assert StepDataset.open(folder).n_parts > 1
        for merge in EXPORTERS[name].choices.get("merge", (None,)):
            options = {} if merge is None else {"merge": merge}
            whole = export(made, filled, name, tmp_path / "studio", options=options)
            joined = export_dataset(folder, name, tmp_path / "joined", options=options)
            assert joined.path.name == whole.path.name
            assert joined.path.read_bytes() == whole.path.read_bytes(), (name, merge)
            assert same_manifest(joined.manifest, whole.manifest), (name, merge)
            assert hashlib.sha256(joined.path.read_bytes()).hexdigest() == joined.manifest["sha256"]
    beside = {path.name for path in (tmp_path / "studio").iterdir()}
    assert {path.name for path in (tmp_path / "joined").iterdir()} == beside, "no part is left behind"


def test_a_group_is_in_one_file_and_every_step_once(
    filled: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "CHUNK_TOKENS", 12)
    made = plan_for(filled, "steps_parquet")
    result = export(made, filled, "steps_dataset", tmp_path, options={"part_tokens": "60"})
    files = StepDataset.open(result.path).files()
    assert 1 < len(files) < made.n_groups
    groups = [set(pq.read_table(file)["prompt_uid"].to_pylist()) for file in files]
    assert sum(map(len, groups)) == len(set.union(*groups)) == made.n_groups
    # DuckDB reads the folder as a whole, and the studio's file of the same plan.
    query = "SELECT * FROM read_parquet(?) ORDER BY trajectory, step_index, step_uid"
    single = export(made, filled, "steps_parquet", tmp_path)
    rows = [duckdb.execute(query, [str(one)]).fetchall() for one in (result.path / "steps" / "*.parquet", single.path)]
    assert rows[0] == rows[1] and len(rows[0]) == result.n_rows == len(made.steps)
    assert export(made, filled, "steps_dataset", tmp_path, options={"part_tokens": "60"}).manifest == result.manifest


def test_a_redacted_version_joins_to_its_own_bytes(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHUNK_TOKENS", 4)
    mail = [{"role": "user", "content": "write to ann@example.org"}]
    pool.steps.append(
        conversation("a", "A", [([1, 2], [3]), ([4], [5])])
        + conversation("b", "B", [([1, 2], [3, 4])], messages=mail, tokenizer_hash=tokenizer_hash()),
        completions=[*done("a", reward=1.0), *done("b", reward=1.0)],
    )
    rules = parse_redaction({"rules": ["email"], "action": "mask"})
    freeze_version(pool, "v1", View(where="step_uid <> 'ann@example.org'"), SFT, redaction=rules, author="ann")
    made = version_plan(pool, "v1", None)
    folder = export(made, pool, "steps_dataset", tmp_path, options={"part_tokens": "1"}).path
    for name in ("openai_messages", "trl_sft", "steps_parquet"):
        whole, joined = export(made, pool, name, tmp_path / "a"), export_dataset(folder, name, tmp_path / "b")
        assert joined.path.read_bytes() == whole.path.read_bytes()
        assert same_manifest(joined.manifest, whole.manifest)
    assert not any(b"ann@example.org" in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("n_tables", [1, 2, 16, 40])
def test_joined_row_groups_are_those_of_one_writer(tmp_path: Path, n_tables: int) -> None:
    """pyarrow's own writer of all row groups is the reference; 15 and more are listed in another way in the footer."""
    rng = random.Random(n_tables)
    groups = [
        [[rng.randrange(-9, 9) for _ in range(rng.randrange(6))] for _ in range(rng.randrange(1, 4))]
        for _ in range(n_tables)
    ]
    folder = tmp_path
    schema = pa.schema({"ids": pa.list_(pa.int32()), "name": pa.string(), "x": pa.float64(), "ok": pa.bool_()})
    tables = [
        pa.table(
            [rows, [str(row) for row in rows], [None if not row else row[0] / 2 for row in rows], [True] * len(rows)],
            schema=schema,
        )
        for rows in groups
    ]

    def written(path: Path, some: list[pa.Table]) -> Path:
        with path.open("wb") as file, Sink(file) as sink:
            write_row_groups(sink, schema, ((0, one, Written(0, 0, 0)) for one in some), 0, lambda done, total: None)
        return path

    third = len(tables) // 3
    shares = [share for share in (tables[:third], tables[third : 2 * third], tables[2 * third :]) if share]
    parts = [written(folder / f"{i}.parquet", share) for i, share in enumerate(shares)]
    with (folder / "joined.parquet").open("wb") as file, Sink(file) as sink:
        join_parquet(parts, sink)
    assert (folder / "joined.parquet").read_bytes() == written(folder / "whole.parquet", tables).read_bytes()


def test_refusals(filled: Pool, tmp_path: Path) -> None:
    made = plan_for(filled, "trl_sft")
    with pytest.raises(InvalidInput) as caught:
        export(made, filled, "steps_dataset", tmp_path, options={"part_tokens": "many"})
    assert caught.value.field == "options.part_tokens"
    with pytest.raises(InvalidInput) as caught:
        export(made, filled, "steps_dataset", tmp_path, options={"size": "1"})
    assert caught.value.field == "options.size"
    folder = export(made, filled, "steps_dataset", tmp_path).path
    for name in ("slime", "nothing"):
        with pytest.raises(InvalidInput) as caught:
            export_dataset(folder, name, tmp_path / "out")
        assert caught.value.field == "format" and "trl_sft" in str(caught.value.hint)
    with pytest.raises(InvalidInput) as caught:
        export_dataset(tmp_path / "nowhere", "trl_sft", tmp_path / "out")
    assert caught.value.field == "dataset"
    # SFT assigns no advantages: the format refuses in the part, and the export says why.
    with pytest.raises(InvalidInput, match="advantages of a step are unknown") as caught:
        export_dataset(folder, "trl_grpo", tmp_path / "out")
    assert caught.value.field == "recipe.algorithm"

    def lost(*arguments: Any) -> list[PartDone]:
        return []

    with pytest.raises(StudioError, match="0 of 1 parts"):
        export_dataset(folder, "trl_sft", tmp_path / "out", run=lost)

    def changed(folder: Path, numbers: Any, name: str, settings: Any, out_dir: Path) -> list[PartDone]:
        parts = [export_part(folder, number, name, settings, out_dir) for number in numbers]
        Path(parts[0].path).write_bytes(b"other")
        return parts

    with pytest.raises(InvalidInput) as caught:
        export_dataset(folder, "trl_sft", tmp_path / "out", run=changed)
    assert caught.value.field == "out"
    assert list((tmp_path / "out").iterdir()) == [], "nothing is left of what failed"
    data = folder / StepDataset.open(folder).head["parts"][0]["file"]
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    with pytest.raises(InvalidInput, match="changed or damaged"):
        export_dataset(folder, "trl_sft", tmp_path / "out")


def test_a_cancelled_dataset_leaves_nothing(filled: Pool, tmp_path: Path) -> None:
    def cancel(n_done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(plan_for(filled, "trl_sft"), filled, "steps_dataset", tmp_path / "out", progress=cancel)
    assert list((tmp_path / "out").iterdir()) == []


def test_texts_without_ids(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHUNK_TOKENS", 4)
    none = {"prompt_ids": None, "response_ids": None, "response_logprobs": None, "token_source": "none"}
    pool.steps.append(
        conversation("ids", "A", [([1, 2], [3])]) + conversation("text", "B", [([1], [2])], **none),
        completions=[*done("ids", reward=1.0), *done("text", reward=1.0)],
    )
    made = plan(pool, View(), parse_recipe({**SFT_ALL, "token_sources": ["engine", "none"]}))
    folder = export(made, pool, "steps_dataset", tmp_path, options={"part_tokens": "1"}).path
    whole = export(made, pool, "openai_messages", tmp_path / "a")
    joined = export_dataset(folder, "openai_messages", tmp_path / "b")
    assert joined.path.read_bytes() == whole.path.read_bytes() and same_manifest(joined.manifest, whole.manifest)
    with pytest.raises(InvalidInput, match="have no token ids"):
        export_dataset(folder, "trl_sft", tmp_path / "b")
