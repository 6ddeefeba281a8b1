"""The order, parents and transitions of steps do not depend on which machine's records arrive late."""

from __future__ import annotations

import threading
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.ingest import Ingest
from core.ingest.writers import LATE_S, PATIENCE_S
from core.journal import Journal, write_watermarks
from core.pool import Pool
from core.records import complete_record
from tests.effort import settings
from tests.ingest.late import LOCAL, Machines
from tests.ingest.recorded import TOOLS, call

BEGIN = 1_700_000_000.0
LATE = "node1.a1"
OTHER = "node2.b1"


def chain(name: str, writers: list[str], *, begin: float, every: float = 1.0, known: bool = True) -> list[Any]:
    """One agent whose calls go to these writers in turn: (writer, time, record)."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"task of {name}"}]
    calls = []
    for turn, writer in enumerate(writers):
        at, answer = begin + turn * every, f"{name} thinks {turn}"
        record = call(
            f"{name}-{turn}", list(messages), answer, trajectory_uid=name if known else None, tools=TOOLS, at=at
        )
        calls.append((writer, at, record))
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"saw {turn}"}]
    return calls


def by_time(*chains: list[Any]) -> list[Any]:
    return sorted((one for calls in chains for one in calls), key=lambda one: one[1])


def test_the_middle_step_of_a_machine_that_is_10_s_late_keeps_its_place(tmp_path):
    moved = chain("moved", [LOCAL, LATE, LOCAL], begin=BEGIN)
    done = [(LOCAL, BEGIN + 2.1, complete_record(at=BEGIN + 2.1, trajectory_uid="moved", reward=1.0))]
    others = chain("others", [LOCAL, OTHER, LOCAL], begin=BEGIN + 0.2)
    machines = Machines(tmp_path, by_time(moved, done, others))
    now = BEGIN + 2.5 + LATE_S
    machines.at(now, {LATE: BEGIN + 0.5, OTHER: now})
    steps = machines.steps()
    assert {uid for uid in steps if uid.startswith("others")} == {"others-0", "others-1", "others-2"}
    assert {uid for uid in steps if uid.startswith("moved")} == {"moved-0"}
    assert not steps["trajectory moved"]["complete"]
    assert machines.ingest.n_held == 2
    assert machines.ingest.held_s == now - (BEGIN + 2.0)
    assert machines.ingest.other_writers() == [
        {"writer": LATE, "behind_s": 4.0, "state": "silent"},
        {"writer": OTHER, "behind_s": 0.0, "state": "in_time"},
    ]
    machines.at(BEGIN + 11, {LATE: BEGIN + 11, OTHER: BEGIN + 11})
    assert machines.steps() == machines.in_time()
    assert machines.ingest.n_held == machines.ingest.n_late == 0
    steps = machines.steps()
    assert [steps[f"moved-{turn}"]["step_index"] for turn in range(3)] == [0, 1, 2]
    assert steps["moved-2"]["parent_step_uid"] == "moved-1"
    assert steps["moved-2"]["transition"] == "extends"
    machines.close()


def test_calls_wait_a_moment_for_a_machine_that_is_in_time(tmp_path):
    """Nothing in the second prompt tells that the first was asked: only the order of time does."""
    ask = [{"role": "user", "content": "the same"}]
    calls = [
        (writer, BEGIN + turn, call(f"same-{turn}", ask, f"answer {turn}", trajectory_uid="same", at=BEGIN + turn))
        for turn, writer in enumerate([LATE, LOCAL, LATE, LOCAL])
    ]
    machines = Machines(tmp_path, calls)
    for now in range(8):
        machines.at(BEGIN + now / 2, {LATE: BEGIN + now / 2 - LATE_S * 0.9})
    machines.at(BEGIN + 10, {LATE: BEGIN + 10})
    assert machines.steps() == machines.in_time()
    assert [machines.steps()[f"same-{turn}"]["step_index"] for turn in range(4)] == [0, 1, 2, 3]
    machines.close()


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_random_delays_change_nothing(tmp_path_factory, data):
    writers = [LOCAL, LATE, OTHER]
    chains = []
    for number in range(data.draw(st.integers(1, 4))):
        homes = data.draw(st.lists(st.sampled_from(writers), min_size=1, max_size=6))
        begin = BEGIN + data.draw(st.floats(0, 20))
        every = data.draw(st.sampled_from([0.1, 1.0, 5.0]))
        chains.append(chain(f"t{number}", homes, begin=begin, every=every, known=data.draw(st.booleans())))
    calls = by_time(*chains)
    machines = Machines(tmp_path_factory.mktemp("machines"), calls)
    visible = dict.fromkeys(machines.others, BEGIN)
    now = BEGIN
    while now < calls[-1][1]:
        now += data.draw(st.sampled_from([0.3, 2.0, 8.0]))
        for writer in machines.others:
            delay = data.draw(st.sampled_from([0.0, 0.5, 1.9, 6.0, 30.0]))
            visible[writer] = max(visible[writer], now - delay)
        machines.at(now, visible)
        if data.draw(st.integers(0, 9)) == 0:
            machines.restart()
    assert PATIENCE_S > 30 + 8
    machines.at(now + 1, dict.fromkeys(machines.others, now + 1))
    assert machines.steps() == machines.in_time()
    assert machines.ingest.n_held == machines.ingest.n_late == 0
    assert not machines.pool.journal.errors()
    machines.close()


def test_the_wait_is_bounded_and_what_arrives_after_it_is_marked(tmp_path):
    machines = Machines(tmp_path, chain("moved", [LOCAL, LATE, LOCAL], begin=BEGIN))
    machines.at(BEGIN + 5, {LATE: BEGIN})
    assert machines.ingest.n_held == 1
    machines.restart()
    assert machines.ingest.n_held == 1
    machines.at(BEGIN + PATIENCE_S + 0.1, {LATE: BEGIN})
    assert {uid for uid in machines.steps() if "-" in uid} == {"moved-0", "moved-2"}
    assert machines.ingest.n_held == machines.ingest.n_late == 0
    assert machines.ingest.other_writers()[0]["state"] == "absent"
    now = BEGIN + PATIENCE_S + 20
    machines.at(now, {LATE: now})
    late = machines.steps()["moved-1"]
    assert late["step_index"] == 2
    assert late["metadata"]["stored_late"] == "a call of its trajectory that ended 1.0 s later was stored before it"
    assert machines.ingest.n_late == 1
    machines.close()


def test_a_client_reads_its_own_writes_beside_other_machines(tmp_path):
    """``catch_up`` returns when the other machines' writers are visible up to the time of its call."""
    machines = Machines(tmp_path, chain("mine", [LATE], begin=BEGIN))
    machines.close()
    journal = Journal(tmp_path / "own")
    pool = Pool.open(tmp_path / "own.duckdb", clock=time.time)
    ingest = Ingest(tmp_path / "own", pool, wait=journal.wait, clock=time.time)
    write_watermarks(tmp_path / "own", {LATE: time.time()})
    journal.append(call("own-0", [{"role": "user", "content": "hello"}], "yes", at=time.time())).result(20)
    later = threading.Timer(0.4, lambda: write_watermarks(tmp_path / "own", {LATE: time.time()}))
    later.start()
    assert ingest.catch_up(20)
    assert pool.steps.existing(["own-0"]) == ["own-0"]
    later.join()
    journal.close()
    pool.close()


def test_a_single_machine_never_waits(tmp_path):
    journal = Journal(tmp_path / "journal")
    pool = Pool.open(tmp_path / "pool.duckdb", clock=lambda: BEGIN)
    ingest = Ingest(tmp_path / "journal", pool, wait=journal.wait, clock=lambda: BEGIN)
    for _, _, record in chain("ahead", [LOCAL] * 3, begin=BEGIN + 3):
        journal.append(record).result(20)
    assert ingest.run_once() == 3
    assert (ingest.n_held, ingest.held_s, ingest.other_writers()) == (0, 0.0, [])
    journal.close()
    pool.close()
