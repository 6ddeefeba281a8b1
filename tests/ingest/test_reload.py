"""After a start the trajectories that a batch needs are read back together, and linked as if nothing had ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.linking.placement import TRAJECTORY_BYTES
from core.pool import Pool, trajectories
from tests.ingest.recorded import Bench, rollout

N = 150


def records(known: bool) -> list[bytes]:
    """Turns of many agents, interleaved; every third one has the task of the one before it."""
    agents = (rollout(f"a{n}", turns=4, task=f"task {n - n % 3}", known=known, at=1e9 + 10 * n) for n in range(N))
    return [record for record in chain.from_iterable(zip_longest(*agents)) if record is not None]


def linked(pool: Pool) -> list[dict[str, Any]]:
    rows = [step for uid in pool.trajectories.uids() for step in pool.trajectories.get(uid)["steps"]]
    for row in rows:
        # Where the record stands, and when it was read.
        del row["journal_segment"], row["journal_offset"], row["ingested_at"]
    return rows


def same(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray):
        return isinstance(right, np.ndarray) and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
    return bool(left == right)


@pytest.mark.parametrize("known", [True, False])
def test_many_are_read_back_with_a_few_queries_and_linked_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    fed = records(known)
    whole, ended = Bench(tmp_path / "whole"), Bench(tmp_path / "ended")
    whole.feed(*fed)
    ended.feed(*fed[: 2 * N])
    ended.restart()
    n_reads = 0
    read = ended.pool._db.read

    @contextmanager
    def counted() -> Iterator[Any]:
        nonlocal n_reads
        n_reads += 1
        with read() as cursor:
            yield cursor

    monkeypatch.setattr(ended.pool._db, "read", counted)
    ended.feed(*fed[2 * N :])
    assert n_reads < N / 2, f"{n_reads} reads for {N} trajectories"
    for one, other in zip(linked(whole.pool), linked(ended.pool), strict=True):
        assert one.keys() == other.keys()
        assert not [name for name in one if not same(one[name], other[name])]
    whole.close()
    ended.close()


@pytest.mark.parametrize(("at_once", "tokens"), [(64, 1 << 20), (2, 1 << 20), (64, 1)])
def test_several_are_each_as_if_read_alone_in_the_order_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, tokens: int
) -> None:
    monkeypatch.setattr(trajectories, "MOST_AT_ONCE", at_once)
    monkeypatch.setattr(trajectories, "MOST_TOKENS", tokens)
    bench = Bench(tmp_path)
    bench.feed(*(record for n in range(7) for record in rollout(f"a{n}", turns=n + 1, task=f"task {n // 2}")))
    wanted_uids = ["a5", "nobody", "a0", "a6", "a3"]
    several = list(bench.pool.trajectories.get_many(wanted_uids))
    assert [one["trajectory_uid"] for one in several] == ["a5", "a0", "a6", "a3"]
    for one in several:
        alone = bench.pool.trajectories.get(one["trajectory_uid"])
        steps, own = one.pop("steps"), alone.pop("steps")
        assert one == alone
        assert len(steps) == len(own) == int(one["trajectory_uid"][1]) + 1
        assert all(step.keys() == other.keys() for step, other in zip(steps, own, strict=True))
        assert all(same(step[name], other[name]) for step, other in zip(steps, own, strict=True) for name in step)
    bench.close()


def test_a_batch_larger_than_the_memory_for_links_is_linked_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch evicts what the next one needs."""
    fed = records(True)
    whole, small = Bench(tmp_path / "whole"), Bench(tmp_path / "small")
    monkeypatch.setattr(small.ingest._linker, "_max_bytes", 10 * TRAJECTORY_BYTES)
    whole.feed(*fed)
    small.feed(*fed)
    assert small.ingest._linker._held <= 10 * TRAJECTORY_BYTES
    for one, other in zip(linked(whole.pool), linked(small.pool), strict=True):
        assert not [name for name in one if not same(one[name], other[name])]
    whole.close()
    small.close()
