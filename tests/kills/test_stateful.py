"""Hypothesis drives the same operations as the seeded run, in its own order, and compares after each start.

``make test`` drives one life of a studio, ``make beyond`` six or ``CLAW_STATEFUL``; ``CLAW_STATEFUL_STEPS`` says how
many steps one has. The processes and the kills are real.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.conftest import eventually
from tests.kills.driver import MOST, OPERATIONS, POINTS, Aim, Run
from tests.kills.nursery import Nursery
from tests.left_out import only_in_ci

N_LIVES = int(os.environ.get("CLAW_STATEFUL", "6"))
N_STEPS = int(os.environ.get("CLAW_STATEFUL_STEPS", "16"))
many = pytest.param(N_LIVES, marks=() if "CLAW_STATEFUL" in os.environ else only_in_ci("six lives, some minutes"))

POINTED = st.sampled_from(POINTS).flatmap(
    lambda at: st.builds(Aim, st.just("owner"), st.just(at[0]), st.just(at[1]), st.integers(1, MOST[at[0]]))
)


class Life(RuleBasedStateMachine):
    """One data folder, from its first start to its last."""

    nursery: Nursery
    totals: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.runs = False

    @initialize(gateways=st.sampled_from([0, 1, 3]), seed=st.integers(0, 2**32 - 1))
    def begin(self, gateways: int, seed: int) -> None:
        self.run = Run(Path(self.folder.name), gateways=gateways, seed=seed, nursery=self.nursery)
        self.runs = self.run.begin(Aim())

    @precondition(lambda self: not self.runs)
    @rule(aim=st.just(Aim()) | POINTED)
    def start(self, aim: Aim) -> None:
        self.runs = self.run.begin(aim)

    @precondition(lambda self: not self.runs)
    @rule()
    def ends_at_its_start(self) -> None:
        self.run.stumble()

    @precondition(lambda self: self.runs)
    @rule(n=st.integers(1, 12))
    def calls(self, n: int) -> None:
        """So many more calls are answered, unless the service ends before."""
        before = sum(len(caller.answered) for caller in self.run.callers)
        eventually(lambda: self.run.ended or sum(len(one.answered) for one in self.run.callers) >= before + n)

    @precondition(lambda self: self.runs)
    @rule(what=st.sampled_from(sorted(set(OPERATIONS))))
    def operation(self, what: str) -> None:
        """A label, an undo, a completion, a lease, a freeze or an export."""
        self.run.ask(what)

    @precondition(lambda self: self.runs)
    @rule()
    def engine_ends(self) -> None:
        self.run.kill_engine()

    @precondition(lambda self: self.runs and self.run.gateways > 0)
    @rule()
    def worker_ends(self) -> None:
        self.run.kill_worker()

    @precondition(lambda self: self.runs)
    @rule(role=st.sampled_from(["owner", "owner", "all"]))
    def ends(self, role: str) -> None:
        """By SIGKILL."""
        self.run.end(role)
        self.runs = False

    @precondition(lambda self: self.runs)
    @rule()
    def stops(self) -> None:
        """By SIGTERM."""
        self.run.stop()
        self.runs = False

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "run"):
            assert not self.run.promised.lost

    def teardown(self) -> None:
        if hasattr(self, "run"):
            try:
                if self.runs:
                    self.run.end("owner")
                result = self.run.finish()
                self.nothing_is_lost()
                self.totals.update({name: n for name, n in result.items() if isinstance(n, int)}, lives=1)
            finally:
                self.run.close()
        self.folder.cleanup()


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.mark.parametrize("n_lives", [1, many])
def test_a_life_in_any_order_keeps_what_it_promised(n_lives: int, nursery: Nursery) -> None:
    Life.nursery, Life.totals = nursery, Counter()
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=n_lives,
            stateful_step_count=N_STEPS,
            deadline=None,
            derandomize="CLAW_STATEFUL" not in os.environ,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(json.dumps(Life.totals))
    assert Life.totals["kills"] >= Life.totals["lives"], "hardly anything was killed: the lives proved nothing"
