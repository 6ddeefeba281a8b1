"""How far behind: everybody who asks at the same time shares a look, and none that began before they asked."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from core.ingest.lag import LagMeter
from core.journal import Journal, JournalReader
from core.records import policy_record
from tests.conftest import eventually

N_ASKING = 60


class HeldReader(JournalReader):
    """Looks at the journal, and gives the result only when it may."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.n_looks = 0
        self.may = threading.Event()

    def read(self, after: Mapping[str, int]) -> list[Any]:
        self.n_looks += 1
        items = [iter(list(one)) for one in super().read(after)]
        assert self.may.wait(60)
        return items


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    opened = Journal(tmp_path)
    yield opened
    opened.close()


def test_all_who_wait_share_one_look_and_see_what_came_before_they_asked(journal: Journal, tmp_path: Path) -> None:
    lag = LagMeter(tmp_path, lambda: 1000.0)
    reader = lag._reader = HeldReader(tmp_path)
    asking: list[int] = []

    def ask() -> float:
        asking.append(1)
        return lag.seconds(dict)

    with ThreadPoolExecutor(N_ASKING + 1) as threads:
        early = threads.submit(ask)
        eventually(lambda: reader.n_looks == 1)
        journal.append(policy_record(at=990.0, version=1, event="registered")).result()
        late = [threads.submit(ask) for _ in range(N_ASKING)]
        eventually(lambda: len(asking) == N_ASKING + 1)
        reader.may.set()
        assert early.result(60) == 0.0
        assert [one.result(60) for one in late] == [10.0] * N_ASKING
    # The last to come may have asked after the second look began.
    assert reader.n_looks <= 3


def test_a_look_that_failed_is_nobodys_answer(journal: Journal, tmp_path: Path) -> None:
    lag = LagMeter(tmp_path, lambda: 1000.0)
    journal.append(policy_record(at=990.0, version=1, event="registered")).result()

    def broken() -> dict[str, int]:
        raise ValueError("no positions")

    with pytest.raises(ValueError, match="no positions"):
        lag.seconds(broken)
    assert lag.seconds(dict) == 10.0
