"""A damaged journal through ingest: every record that was not hurt becomes its step, once, in order; damage is told."""

from __future__ import annotations

import time

import orjson
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.ingest import Ingest
from core.journal import Journal
from core.pool import Pool
from tests.effort import settings
from tests.journal.harm import harms

N = 8


def record(n: int) -> bytes:
    step = {"step_uid": f"s{n}", "step_index": n, "trajectory_uid": "t", "prompt_ids": [1] * n, "response_ids": [2]}
    return orjson.dumps({"kind": "steps", "v": 1, "at": 1000.0 + n, "steps": [step]})


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), n_before=st.integers(0, N))
def test_all_steps_but_the_hurt_ones_arrive_once(tmp_path_factory, data, n_before):
    directory = tmp_path_factory.mktemp("damaged")
    pool = Pool.open(directory / "pool.duckdb", clock=time.time)

    def bring_in() -> None:
        ingest = Ingest(directory, pool, wait=lambda _: False, clock=time.time)
        while ingest.run_once():
            continue

    try:
        journal = Journal(directory)
        places = [journal.append(record(n)).result(60) for n in range(n_before)]
        bring_in()
        places += [journal.append(record(n)).result(60) for n in range(n_before, N)]
        journal.close()
        (segment,) = directory.glob("*.seg")
        whole = segment.read_bytes()
        harm = data.draw(harms(whole))
        hurt = harm.done_to(whole)
        segment.write_bytes(hurt)
        after = Journal(directory)
        after.append(record(N)).result(60)
        after.close()
        bring_in()
        bring_in()  # once more, as after a restart
        steps = [step["step_uid"] for step in pool.trajectories.get("t")["steps"]]
        assert steps == sorted(set(steps))
        ends = [*(offset for _, offset in places[1:]), len(whole)]
        spared = {f"s{n}" for n in range(N) if n < n_before or harm.spares(places[n][1], ends[n])}
        assert spared | {f"s{N}"} <= set(steps)
        reported = pool.journal.damages()
        assert len({(one["journal_offset"], one["next_offset"]) for one in reported}) == len(reported)
        if n_before == 0 and hurt != whole:
            assert reported
            assert all(one["segment"] == segment.name for one in reported)
            assert list(directory.glob("*.bad"))
    finally:
        pool.close()
