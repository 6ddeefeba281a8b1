"""The mirror between a node's journal and the pool's folder, in one process: what arrives, and what is waited for."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.cluster.agent import _JournalServer
from core.cluster.mirror import FINISHED, Mirror
from core.journal import Journal, Watermarks, damages, open_target, read_records
from core.journal.layout import FOLDER_FILE, make_folder_id
from core.journal.lock import is_held
from tests.conftest import eventually

TOKEN = "a-token-for-tests-0123456789"
WRITER = "node.n1.g1.aa"


class Both:
    """A node with a journal, and the pool's folder with a mirror. ``target``: a shared folder."""

    def __init__(self, folder: Path) -> None:
        self.node, self.pool, self.shared = folder / "node", folder / "pool", folder / "shared"
        for one in (self.node, self.pool, self.shared):
            one.mkdir()
        make_folder_id(self.pool)
        shutil.copy(self.pool / FOLDER_FILE, self.node)
        shutil.copy(self.pool / FOLDER_FILE, self.shared)
        self.server = _JournalServer("127.0.0.1", self.node, TOKEN)
        self.mirror = self.start()
        self.sent: list[bytes] = []

    def start(self) -> Mirror:
        return Mirror(
            self.pool,
            positions=dict,
            token=TOKEN,
            target=open_target(str(self.shared)),
            on_copied=lambda: None,
            clock=time.time,
        )

    def follow(self) -> None:
        self.mirror.follow("n1", "127.0.0.1", self.server.port)

    def journal(self, writer: str = WRITER) -> Journal:
        return Journal(self.node, writer=writer, segment_bytes=1 << 16, target=open_target(str(self.shared)))

    def write(self, journal: Journal, n: int) -> None:
        begin = len(self.sent)
        payloads = [b"%d " % number + bytes([65 + number % 26]) * 3000 for number in range(begin, begin + n)]
        for future in [journal.append(payload) for payload in payloads]:
            future.result(20)
        self.sent += payloads

    def arrived(self) -> bool:
        return [record.payload for record in read_records(self.pool, {})] == self.sent


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    made = Both(tmp_path)
    yield made
    made.mirror.close()
    made.server.close()


def test_segments_arrive_in_order_and_a_writer_that_has_ended_is_not_waited_for(both: Both) -> None:
    both.mirror.expect("n1", WRITER)
    both.follow()
    journal = both.journal()
    for _ in range(10):
        both.write(journal, 10)
    eventually(both.arrived)
    assert is_held(both.pool, WRITER)
    seen = Watermarks(both.pool).read()[WRITER]
    eventually(lambda: Watermarks(both.pool).read()[WRITER] > seen)
    assert len(list(both.pool.glob("*.seg"))) > 3
    journal.close()
    both.mirror.closed("n1", WRITER)
    eventually(lambda: WRITER not in Watermarks(both.pool).read())
    assert not is_held(both.pool, WRITER)
    assert WRITER in (both.pool / FINISHED).read_text()
    assert {path.name: path.read_bytes() for path in both.node.glob("*.seg")} == {
        path.name: path.read_bytes() for path in both.pool.glob("*.seg")
    }
    assert not list(damages(both.pool))


def test_a_writer_that_has_made_its_lock_and_does_not_hold_it_yet_has_not_ended(both: Both) -> None:
    """A listing may fall between the two: the writer's records are copied all the same."""
    both.follow()
    both.mirror.expect("n1", WRITER)
    (both.node / f"{WRITER}.lock").touch()
    for _ in range(2):
        seen = eventually(lambda: both.mirror.status("n1")["until"])
        eventually(lambda seen=seen: both.mirror.status("n1")["until"] > seen)
    journal = both.journal()
    both.write(journal, 10)
    eventually(both.arrived)
    journal.close()
    both.mirror.closed("n1", WRITER)
    eventually(lambda: not is_held(both.pool, WRITER))


def test_a_mirror_that_is_started_again_goes_on_and_mends_the_end(both: Both) -> None:
    both.follow()
    journal = both.journal()
    both.write(journal, 30)
    eventually(both.arrived)
    both.mirror.close()
    both.write(journal, 30)
    # As after a power failure: the end was not on disk.
    newest = max(both.pool.glob("*.seg"))
    size = newest.stat().st_size
    with newest.open("r+b") as file:
        file.seek(max(0, size - 5000))
        file.write(bytes(min(5000, size)))
    both.mirror = both.start()
    assert is_held(both.pool, WRITER)
    both.follow()
    eventually(both.arrived)
    assert not list(damages(both.pool))
    journal.close()


def test_a_lost_disk_is_copied_from_the_target(both: Both) -> None:
    both.follow()
    first = both.journal()
    both.write(first, 30)
    eventually(both.arrived)
    # The machine answers no more.
    both.server.close()
    both.mirror.follow("n1", "127.0.0.1", 1)
    eventually(lambda: both.mirror.status("n1")["problem"])
    both.write(first, 40)
    assert not both.arrived()
    first.close()
    shutil.rmtree(both.node)
    both.mirror.node_gone("n1")
    eventually(both.arrived)
    eventually(lambda: WRITER not in Watermarks(both.pool).read())
    # Its machine may have been frozen: more of it is accepted.
    assert is_held(both.pool, WRITER)
    assert not list(damages(both.pool))
    both.node.mkdir()
    shutil.copy(both.pool / FOLDER_FILE, both.node)
    both.server = _JournalServer("127.0.0.1", both.node, TOKEN)
    second = both.journal("node.n1.g1.bb")
    both.follow()
    both.write(second, 20)
    eventually(both.arrived)
    second.close()


def test_a_machine_that_is_back_with_an_empty_disk_before_its_end_was_noticed(both: Both) -> None:
    both.mirror.expect("n1", WRITER)
    both.follow()
    first = both.journal()
    both.write(first, 30)
    eventually(both.arrived)
    both.server.close()
    both.mirror.follow("n1", "127.0.0.1", 1)
    eventually(lambda: both.mirror.status("n1")["problem"])
    both.write(first, 40)
    first.close()
    shutil.rmtree(both.node)
    both.mirror.closed("n1", WRITER)
    both.node.mkdir()
    shutil.copy(both.pool / FOLDER_FILE, both.node)
    both.server = _JournalServer("127.0.0.1", both.node, TOKEN)
    second = both.journal("node.n1.g1.bb")
    both.follow()
    both.write(second, 20)
    eventually(both.arrived)
    second.close()


def test_a_wrong_token_gets_nothing(both: Both) -> None:
    journal = both.journal()
    both.write(journal, 1)
    both.mirror.close()
    both.mirror = Mirror(
        both.pool, positions=dict, token="another", target=None, on_copied=lambda: None, clock=time.time
    )
    both.follow()
    assert "401" in eventually(lambda: both.mirror.status("n1")["problem"])
    assert not list(both.pool.glob("*.seg"))
    journal.close()


def test_a_node_that_is_forgotten_is_not_waited_for(both: Both) -> None:
    both.follow()
    journal = both.journal()
    both.write(journal, 3)
    eventually(lambda: WRITER in Watermarks(both.pool).read())
    journal.close()
    both.server.close()
    both.mirror.forget("n1")
    assert WRITER not in Watermarks(both.pool).read()
