"""Places of parents among the candidates against a dictionary."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from core.batch import links


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95, 1.0])
def test_places_are_those_of_a_dictionary(share):
    chance = random.Random(7)
    for n in (0, 1, 2, 300):
        uids = [f"s{number}" for number in range(n)]
        chance.shuffle(uids)
        others = [None, "elsewhere", *uids]
        wanted = [uids[row - 1] if row and chance.random() < share else chance.choice(others) for row in range(n)]
        place = {uid: row for row, uid in enumerate(uids)}
        found = links.places(pa.array(wanted, pa.string()), pa.array(uids, pa.string()))
        assert found.tolist() == [place.get(uid, -1) for uid in wanted]


def test_rows_after_their_parent_are_not_looked_up(monkeypatch):
    monkeypatch.setattr(links.pc, "index_in", None)
    uids = [f"s{number}" for number in range(50)]
    found = links.places(pa.array([None, *uids[:-1]], pa.string()), pa.array(uids, pa.string()))
    assert found.tolist() == [-1, *range(49)]
