from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.errors import AlreadyOwned, JournalError
from core.journal import Journal, head_bytes, journal_bytes, read_after, read_records, read_since_mark
from core.journal.layout import FRAME_BYTES
from tests.effort import settings

payloads = st.lists(st.binary(max_size=300), max_size=30)
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def contents(directory: Path) -> list[bytes]:
    return [record.payload for record in read_records(directory, {})]


@quick
@given(batch=payloads, segment_bytes=st.sampled_from([1, 500, 1 << 20]))
def test_what_was_appended_is_read_back_in_order(tmp_path_factory, batch, segment_bytes):
    directory = tmp_path_factory.mktemp("journal")
    journal = Journal(directory, segment_bytes=segment_bytes)
    positions = [journal.append(payload).result(60) for payload in batch]
    journal.close()
    records = list(read_records(directory, {}))
    assert [record.payload for record in records] == batch
    assert [(record.segment, record.offset) for record in records] == positions
    assert journal.n_bytes == journal_bytes(directory)


@quick
@given(batch=st.lists(st.binary(max_size=200), min_size=1, max_size=10), data=st.data())
def test_a_file_cut_anywhere_reads_as_a_prefix(tmp_path_factory, batch, data):
    directory = tmp_path_factory.mktemp("journal")
    journal = Journal(directory)
    ends = [journal.append(payload).result(60)[1] + FRAME_BYTES + len(payload) for payload in batch]
    journal.close()
    (segment,) = directory.glob("*.seg")
    whole = segment.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    # A file system may leave zeros or old bytes behind the last synced one.
    segment.write_bytes(whole[:cut] + data.draw(st.sampled_from([b"", b"\0" * 64, b"\xff" * 64])))
    survivors = contents(directory)
    assert survivors == batch[: len(survivors)]
    assert len(survivors) >= sum(offset <= cut for offset in ends)
    torn = segment.read_bytes()

    again = Journal(directory)
    again.append(b"after the crash").result(60)
    again.close()
    assert segment.read_bytes() == torn, "a start cuts nothing"
    *survived, last = contents(directory)
    assert last == b"after the crash"
    assert survived == batch[: len(survived)]
    assert len(survived) >= len(survivors)


def test_reading_goes_on_from_a_position(tmp_path):
    journal = Journal(tmp_path, segment_bytes=100)
    for number in range(20):
        journal.append(b"%d" % number).result(60)
    positions: dict[str, int] = {}
    seen: list[bytes] = []
    while len(seen) < 20:
        for record in read_records(tmp_path, positions):
            seen.append(record.payload)
            positions[record.segment] = record.next_offset
            if len(seen) % 3 == 0:
                break
    assert seen == [b"%d" % number for number in range(20)]
    assert list(read_records(tmp_path, positions)) == []
    journal.append(b"late").result(60)
    assert [record.payload for record in read_records(tmp_path, positions)] == [b"late"]
    journal.close()


def test_a_reader_beside_the_writer_sees_everything_once(tmp_path):
    journal = Journal(tmp_path, segment_bytes=4096)
    total = 2000
    writer = threading.Thread(
        target=lambda: [journal.append(b"%d:" % number + b"x" * (number % 97)) for number in range(total)]
    )
    writer.start()
    positions: dict[str, int] = {}
    seen: list[bytes] = []
    while len(seen) < total:
        journal.wait(0.05)
        for record in read_records(tmp_path, positions):
            positions[record.segment] = record.next_offset
            seen.append(record.payload)
    writer.join()
    journal.close()
    assert seen == [b"%d:" % number + b"x" * (number % 97) for number in range(total)]


def test_several_writers_share_a_directory(tmp_path):
    writers = [Journal(tmp_path, writer=f"w{number}", segment_bytes=200) for number in range(3)]
    for number in range(30):
        writers[number % 3].append(b"%d" % number)
    for journal in writers:
        journal.close()
    assert sorted(contents(tmp_path), key=int) == [b"%d" % number for number in range(30)]
    for number in range(3):
        own = [int(r.payload) for r in read_records(tmp_path, {}) if r.segment.startswith(f"w{number}-")]
        assert own == list(range(number, 30, 3))


def test_a_writer_name_is_held_by_one(tmp_path):
    journal = Journal(tmp_path)
    with pytest.raises(AlreadyOwned):
        Journal(tmp_path)
    journal.close()
    Journal(tmp_path).close()


def test_appends_of_one_loop_are_synced_together(tmp_path):
    journal = Journal(tmp_path)

    async def many() -> list[tuple[str, int]]:
        return await asyncio.gather(*(journal.append_async(b"%d" % number) for number in range(500)))

    positions = asyncio.run(many())
    assert len(set(positions)) == 500
    assert [(record.segment, record.offset) for record in read_records(tmp_path, {})] == positions
    journal.close()


def test_a_loop_that_ends_in_the_middle_of_an_append_holds_up_nobody(tmp_path):
    journal = Journal(tmp_path)

    async def begin_and_leave():
        appending = asyncio.create_task(journal.append_async(b"first"))
        # The loop ends in the turn in which the append began.
        asyncio.get_running_loop().call_soon(appending.cancel)
        await asyncio.sleep(0)

    asyncio.run(begin_and_leave())
    journal.append(b"second").result(20)
    journal.close()
    assert contents(tmp_path) == [b"first", b"second"]


def test_close_flushes_and_refuses_what_comes_later(tmp_path):
    journal = Journal(tmp_path)
    futures = [journal.append(b"%d" % number) for number in range(100)]
    journal.close()
    journal.close()
    assert all(future.done() and future.exception() is None for future in futures)
    with pytest.raises(JournalError):
        journal.append(b"late").result(1)


def test_wait_tells_of_new_records_once(tmp_path):
    journal = Journal(tmp_path)
    assert journal.wait(0.01) is False
    journal.append(b"one").result(60)
    assert journal.wait(1.0) is True
    assert journal.wait(0.01) is False
    journal.close()


def test_a_folder_that_can_not_be_made_is_named(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(JournalError) as caught:
        Journal(tmp_path / "file" / "journal")
    assert "file/journal" in caught.value.message
    assert caught.value.hint


WRITER = """
import sys
from pathlib import Path
from core.journal import Journal
journal = Journal(Path(sys.argv[1]), segment_bytes=20_000)
pending = []
number = int(sys.argv[2])
while True:
    for _ in range(8):
        pending.append((number, journal.append(b"%d " % number + b"x" * (number % 501))))
        number += 1
    for done, future in pending:
        future.result()
        print(done, flush=True)
    pending.clear()
"""


def test_kill_9_loses_nothing_that_was_answered(tmp_path):
    answered: list[int] = []
    for round_number in range(5):
        start = round_number * 1_000_000
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(start)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = []
        for _ in range(40 + 13 * round_number):
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        lines += process.stdout.readlines()
        process.stdout.close()
        answered += [int(line) for line in lines if line.endswith("\n")]
    stored = [int(payload.split(b" ")[0]) for payload in contents(tmp_path)]
    assert len(answered) > 200
    assert set(answered) <= set(stored)
    assert len(stored) == len(set(stored))
    for payload in contents(tmp_path):
        number = int(payload.split(b" ")[0])
        assert payload == b"%d " % number + b"x" * (number % 501)


FILE_LIMIT = """
import resource, sys
from pathlib import Path
from core.errors import JournalError
from core.journal import Journal, read_records
directory = Path(sys.argv[1])
journal = Journal(directory)
journal.append(b"before").result(60)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
futures = [journal.append(b"y" * 900) for _ in range(4)]
failures = [future.exception(60) for future in futures]
assert any(isinstance(failure, JournalError) for failure in failures), failures
assert journal.error
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
journal.append(b"after").result(60)
assert journal.error is None
journal.close()
kept = [record.payload for record in read_records(directory, {})]
expected = [b"before", *(b"y" * 900 for failure in failures if failure is None), b"after"]
assert kept == expected, [len(payload) for payload in kept]
"""


def test_a_file_limit_fails_appends_until_it_is_lifted(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


DISK_FULL = """
import os, sys
from pathlib import Path
from core.errors import JournalError
from core.journal import Journal, journal_bytes, read_records
directory = Path(sys.argv[1]) / "journal"
journal = Journal(directory, segment_bytes=1 << 16)
stored = []
for number in range(1000):
    payload = b"%d " % number + b"z" * 10_000
    failure = journal.append(payload).exception(60)
    if failure is not None:
        break
    stored.append(payload)
assert isinstance(failure, JournalError), failure
assert "space" in failure.message, failure.message
assert len(stored) > 10
assert isinstance(journal.append(b"w" * 200_000).exception(60), JournalError)
assert [record.payload for record in read_records(directory, {})] == stored
freed = min(directory.glob("*.seg"))
freed.unlink()
journal.append(b"there is room again").result(60)
journal.close()
assert [record.payload for record in read_records(directory, {})][-1] == b"there is room again"
"""


def test_a_full_disk_fails_appends_until_there_is_room(tmp_path):
    mounted = f'mount -t tmpfs -o size=512k none {tmp_path} && exec {sys.executable} -c "$SCRIPT" {tmp_path}'
    probe = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"mount -t tmpfs none {tmp_path}"], capture_output=True, check=False
    )
    if probe.returncode != 0:
        pytest.skip("this machine lets nobody mount a small disk")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mounted],
        env={**os.environ, "SCRIPT": DISK_FULL},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_foreign_file_in_the_folder_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "w0-00000007.seg").write_bytes(b"something else entirely")
    journal = Journal(tmp_path)
    segment, offset = journal.append(b"mine").result(60)
    journal.close()
    assert (segment, offset) == ("w0-00000008.seg", head_bytes("w0-00000008.seg"))
    assert contents(tmp_path) == [b"mine"]
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "w0-00000007.seg").read_bytes() == b"something else entirely"


@quick
@given(batch=payloads, more=payloads, segment_bytes=st.sampled_from([1, 500, 1 << 20]), reopened=st.booleans())
def test_a_mark_leads_to_all_that_came_after_it(tmp_path_factory, batch, more, segment_bytes, reopened):
    directory = tmp_path_factory.mktemp("journal")
    writer = "w.1"
    journal = Journal(directory, writer=writer, segment_bytes=segment_bytes)
    other = Journal(directory, writer="w1")
    for payload in batch:
        journal.append(payload).result(60)
    if reopened:
        journal.close()
        journal = Journal(directory, writer=writer, segment_bytes=segment_bytes)
    mark = journal.mark()
    for payload in more:
        other.append(b"of another writer").result(60)
        journal.append(payload).result(60)
    journal.close()
    other.close()
    assert [record.payload for record in read_after(directory, mark)] == more


def test_a_mark_is_never_behind_a_record_that_is_on_its_way(tmp_path):
    journal = Journal(tmp_path, segment_bytes=2000)
    seen: list[bool] = []

    def work(name: int) -> None:
        for number in range(60):
            mark, payload = journal.mark(), b"%d %d" % (name, number)
            journal.append(payload).result(60)
            seen.append(any(record.payload == payload for record in read_after(tmp_path, mark)))

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    assert len(seen) == 240
    assert all(seen)


@pytest.mark.parametrize("mark", ["", "w0", "w0.1", "w0.x.1", "w0.1.-1", "../w0.1.0", "w0.1.999999", "w9.1.0"])
def test_a_mark_that_names_no_place_reads_nothing(tmp_path, mark):
    journal = Journal(tmp_path)
    journal.append(b"one").result(60)
    journal.close()
    assert list(read_after(tmp_path, mark)) == []


def test_a_signed_mark_leads_to_its_own_record_only(tmp_path):
    journal = Journal(tmp_path)
    journal.append(b"before").result(60)
    mark, marked = journal.mark(), journal.mark_for("mine")
    journal.append(b"mine").result(60)
    journal.close()
    assert [record.payload for record in read_since_mark(tmp_path, marked, "mine")] == [b"mine"]
    assert [record.payload for record in read_since_mark(tmp_path, Journal(tmp_path).mark_for("x"), "x")] == []
    signature = marked.rpartition(".")[2]
    for made_up, uid in [(marked, "other"), (mark, "mine"), ("w0.1.0", "mine"), (f"w0.1.0.{signature}", "mine")]:
        assert list(read_since_mark(tmp_path, made_up, uid)) == []
