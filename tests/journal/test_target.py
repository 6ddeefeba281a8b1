"""A journal whose commits are copied to another place survives the loss of its disk."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from core.errors import InvalidInput, JournalError
from core.ingest import Ingest
from core.journal import Journal, damages, fetch_missing, incarnation, open_target, read_records
from core.journal.target import ObjectStore, Target
from core.pool import Pool
from tests.ingest.recorded import call
from tests.left_out import missing

ROOT = Path(__file__).parents[2]
STORE = Path(os.environ.get("CLAW_STORE_ENVIRONMENT", ROOT / ".cache" / "clients" / "store"))
N_KILLS = 10


def fill(journal: Journal, n: int, size: int = 2000, begin: int = 0) -> list[bytes]:
    payloads = [b"%d " % number + bytes([65 + number % 26]) * size for number in range(begin, begin + n)]
    for future in [journal.append(payload) for payload in payloads]:
        future.result(20)
    return payloads


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.seg")}


@pytest.fixture(params=["shared", "store"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    if request.param == "shared":
        (tmp_path / "shared").mkdir()
        made = open_target(str(tmp_path / "shared"))
    else:
        made = open_target(f"memory://{tmp_path.name}-{incarnation('x')}/journal")
    assert made is not None
    return made


def test_every_acknowledged_record_is_in_the_target_byte_for_byte(tmp_path: Path, target: Target) -> None:
    directory = tmp_path / "own"
    journal = Journal(directory, writer=incarnation("w0"), segment_bytes=1 << 16, target=target)
    payloads = []
    for begin in range(0, 100, 10):
        payloads += fill(journal, 10, begin=begin)
        assert {name: len(data) for name, data in contents(directory).items()} == target.sizes()
        # The disk could be lost now.
        copy = tmp_path / f"copy{begin}"
        copy.mkdir()
        assert fetch_missing(target, copy) == sum(target.sizes().values())
        assert contents(copy) == contents(directory)
        assert [record.payload for record in read_records(copy, {})] == payloads
    assert journal.unshipped == (0, 0.0)
    journal.close()
    assert len(target.sizes()) > 2
    assert contents(directory) == {name: target.read(name, 0, size) for name, size in target.sizes().items()}


def test_finished_segments_are_single_objects(tmp_path: Path) -> None:
    address = f"memory://{tmp_path.name}-finished/journal"
    journal = Journal(tmp_path / "own", writer="w0.a", segment_bytes=1 << 16, target=open_target(address))
    for begin in range(0, 60, 5):
        fill(journal, 5, begin=begin)
    store = fsspec.filesystem("memory")
    newest = max(contents(tmp_path / "own"))
    assert [name for name in store.find(address) if newest in name and ".parts/" in name]
    journal.close()
    stored = [name.rpartition("/")[2] for name in store.find(address)]
    assert sorted(stored) == ["folder.id", *sorted(contents(tmp_path / "own"))]


def test_a_range_of_a_segment_in_pieces_is_that_of_the_file(tmp_path: Path) -> None:
    target = ObjectStore(f"memory://{tmp_path.name}-ranges/journal", {})
    journal = Journal(tmp_path / "own", writer="w0.a", target=target)
    for begin in range(0, 20, 4):
        fill(journal, 4, begin=begin)
    ((name, size),) = target.sizes().items()
    whole = (tmp_path / "own" / name).read_bytes()
    rng = random.Random(1)
    for _ in range(50):
        begin, end = sorted(rng.sample(range(size + 1), 2))
        assert target.read(name, begin, end) == whole[begin:end]
    # Another process finishes the segment between the listing and the reading.
    journal.close()
    assert target.read(name, 7, size) == whole[7:]


def test_a_call_fails_when_its_copy_does_and_later_ones_go_on(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    target = open_target(str(shared))
    journal = Journal(tmp_path / "own", writer="w0.a", target=target)
    payloads = fill(journal, 3)
    shared.rename(tmp_path / "away")
    with pytest.raises(JournalError, match="can't be written"):
        journal.append(b"lost").result(20)
    assert journal.error is not None
    assert journal.probe() is not None
    (tmp_path / "away").rename(shared)
    assert journal.probe() is None
    payloads += fill(journal, 3, begin=3)
    journal.close()
    for directory in (tmp_path / "own", shared):
        assert [record.payload for record in read_records(directory, {})] == payloads
        assert not list(damages(directory))


def test_targets_that_can_not_be_used_are_refused_by_name(tmp_path: Path) -> None:
    assert open_target("local") is None
    for address in ("shared/folder", "file:///tmp", "nonsense://x"):
        with pytest.raises(InvalidInput) as refused:
            open_target(address)
        assert refused.value.field == "journal_target"
    with pytest.raises(JournalError, match="can't be used"):
        Journal(tmp_path / "own", target=open_target(str(tmp_path / "absent")))
    (tmp_path / "shared").mkdir()
    Journal(tmp_path / "first", writer="a", target=open_target(str(tmp_path / "shared"))).close()
    Journal(tmp_path / "second").close()
    with pytest.raises(JournalError, match="another journal"):
        Journal(tmp_path / "second", writer="b", target=open_target(str(tmp_path / "shared")))


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """A bucket of a server that speaks S3 (moto): its address and options."""
    if not (STORE / "bin" / "moto_server").exists():
        missing("moto and s3fs are not installed, so no real S3 was written: .ci/run installs them in .cache/clients")
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    server = subprocess.Popen(
        [STORE / "bin" / "moto_server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = "s3://journals/one"
    options = {"endpoint_url": f"http://127.0.0.1:{port}", "key": "k", "secret": "s"}
    try:
        deadline = time.monotonic() + 60
        while subprocess.run(
            [*program(address), "make", address, json.dumps(options)], check=False, cwd=ROOT
        ).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield address, options
    finally:
        server.kill()
        server.wait()


def program(address: str) -> list[str | Path]:
    python = STORE / "bin" / "python" if address.startswith("s3:") else Path(sys.executable)
    return [python, "-m", "tests.journal.copying"]


def killed_and_lost(tmp_path: Path, address: str, options: dict[str, Any]) -> None:
    """Writers are killed in the middle of their work, their disks are lost; the pool gets all that was acknowledged."""
    lines = tmp_path / "lines"
    records = [call(f"step-{number}", [{"role": "user", "content": f"{number} " * 50}], "ok") for number in range(6000)]
    lines.write_bytes(b"\n".join(records))
    acknowledged: set[str] = set()
    begin, rng = 0, random.Random(18)
    for _ in range(N_KILLS):
        disk = tmp_path / "disk"
        disk.mkdir()
        arguments = ["write", address, json.dumps(options), str(disk), str(lines), str(begin)]
        with subprocess.Popen([*program(address), *arguments], stdout=subprocess.PIPE, cwd=ROOT) as writer:
            assert writer.stdout is not None
            numbers = [int(writer.stdout.readline())]
            time.sleep(rng.uniform(0.0, 0.3))
            writer.send_signal(signal.SIGKILL)
            numbers += [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith(b"\n")]
        acknowledged.update(f"step-{number}" for number in numbers)
        begin = max(numbers) + 100
        shutil.rmtree(disk)
    copy = tmp_path / "copy"
    subprocess.run([*program(address), "fetch", address, json.dumps(options), str(copy)], check=True, cwd=ROOT)
    pool = Pool.open(tmp_path / "pool.duckdb", clock=time.time)
    ingest = Ingest(copy, pool, wait=lambda _: False, clock=time.time)
    while ingest.run_once():
        pass
    stored = [record.payload for record in read_records(copy, {})]
    assert len(set(stored)) == len(stored)
    assert set(pool.steps.existing(sorted(acknowledged))) == acknowledged
    counts = pool.stats.totals()
    assert (counts["n_steps"], counts["n_conflicts"], counts["n_ingest_errors"]) == (len(stored), 0, 0)
    assert len(stored) <= len(acknowledged) + 8 * N_KILLS
    pool.close()


def test_ten_writers_killed_and_their_disks_lost_beside_a_shared_folder(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    killed_and_lost(tmp_path, str(tmp_path / "shared"), {})


@pytest.mark.beyond
def test_ten_writers_killed_and_their_disks_lost_beside_s3(tmp_path: Path, s3: tuple[str, dict[str, Any]]) -> None:
    killed_and_lost(tmp_path, *s3)
