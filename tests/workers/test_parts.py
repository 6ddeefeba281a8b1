"""The parts that make several processes look like one."""

from __future__ import annotations

import io
import threading
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from core.gateway.engines.merged_status import merge_statuses
from core.gateway.telemetry.stats import CallEvent, GatewayStats
from core.workers.pipe import Sender, messages
from core.workers.worker_stats import WorkerStats

EVENT = CallEvent(
    at=100.0,
    step_uid="s",
    trajectory_uid=None,
    identity_source="inferred",
    channel="train",
    source="blackbox",
    agent=None,
    model="m",
    engine="e",
    dialect="chat",
    stream=False,
    http_status=200,
    latency_s=0.5,
    n_prompt_tokens=3,
    n_response_tokens=None,
    error=None,
    aborted=False,
)

events = st.builds(
    lambda at, agent, tokens, error, latency: replace(
        EVENT, at=100.0 + at, agent=agent, n_response_tokens=tokens, error=error, latency_s=latency
    ),
    st.integers(0, 5),
    st.sampled_from([None, "a", "b"]),
    st.none() | st.integers(0, 9),
    st.none() | st.just("broke"),
    # Sums of these are exact in any order.
    st.integers(0, 900).map(lambda n: n / 64),
)


@given(st.lists(st.tuples(events, st.booleans(), st.integers(0, 2), st.booleans())))
def test_workers_counts_add_up_to_what_one_process_counts(calls):
    """Each call at one of three workers, which tell after some of them."""
    alone, owner = (GatewayStats(clock=lambda: 105.0) for _ in range(2))
    workers = [WorkerStats(clock=lambda: 105.0) for _ in range(3)]

    def tell(number: int) -> None:
        if (changes := workers[number].changes()) is not None:
            owner.absorb(f"g{number}", changes)

    for event, dropped, number, tells in calls:
        for stats in (alone, workers[number]):
            stats.call_started()
            stats.call_finished(event, dropped=dropped)
        if tells:
            tell(number)
    workers[0].call_started()
    alone.call_started()
    for number in range(3):
        tell(number)
    one, several = alone.snapshot(), owner.snapshot()
    order = {"recent", "last_call_at"}
    assert {k: v for k, v in one.items() if k not in order} == {k: v for k, v in several.items() if k not in order}
    key = repr
    assert sorted(one["recent"], key=key) == sorted(several["recent"], key=key)
    assert all(worker.changes() is None for worker in workers)
    owner.absorb("g0", {"in_flight": 0})
    assert owner.snapshot()["n_in_flight"] == 0


def test_lines_that_are_no_messages_are_passed_over():
    lines = b'{"a": 1}\nWarning: a library speaks\n{broken\n[1]\n\n{"b": {"c": "\xc3\xa9"}}\n{"d": 1}'
    assert list(messages(io.BytesIO(lines))) == [{"a": 1}, {"b": {"c": "é"}}, {"d": 1}]


def test_a_reader_that_is_gone_holds_up_nobody():
    class Gone(io.RawIOBase):
        def write(self, data):
            raise BrokenPipeError

    sender = Sender(Gone(), "gone")
    for number in range(1000):
        sender.send({"n": number})
    sender.close(5.0)
    assert not any(thread.name == "gone" for thread in threading.enumerate())


def status(**over):
    known = {"name": "e", "kind": "openai", "base_url": "http://e/v1", "models": ["*"], "ok": None, "error": None}
    counts = {"n_calls": 0, "n_errors": 0, "findings": {}, "streaming": {"mode": "auto"}, "default": True}
    return {**known, **counts, **over}


def test_what_processes_know_of_an_engine_is_put_together():
    owner = status()
    first = status(ok=True, n_calls=3, findings={"flavour": "vllm"}, streaming={"mode": "auto", "chat": "relay"})
    second = status(ok=False, n_calls=2, n_errors=1, error="gone")
    other = status(name="litellm", ok=True, n_calls=1, default=False)
    whole, litellm = merge_statuses([[owner], [first, other], [second]])
    assert (whole["n_calls"], whole["n_errors"], whole["ok"], whole["error"]) == (5, 1, False, "gone")
    assert whole["findings"] == {"flavour": "vllm"} and whole["streaming"]["chat"] == "relay"
    assert litellm["n_calls"] == 1
    assert merge_statuses([[owner], [status()]])[0]["ok"] is None
    assert merge_statuses([[owner], [first]])[0]["ok"] is True
