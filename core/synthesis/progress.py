"""How far a run is: rows by stage, calls, money, and an estimate of the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from core.synthesis.routes import route_of
from core.synthesis.state import State
from core.synthesis.store import SynthesisRun
from core.synthesis.work import ready, waiting


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Rows of one stage.

    Attributes:
        stage, title: of the stage.
        n_done, n_failed: rows that were made, and rows that failed.
        n_accepted, n_rejected: decisions of people.
        n_waiting: rows that can be made now.
        mean_s: mean duration of a row, seconds; None without any.
    """

    stage: str
    title: str
    n_done: int
    n_failed: int
    n_accepted: int
    n_rejected: int
    n_waiting: int
    mean_s: float | None


@dataclass(frozen=True, slots=True)
class SynthesisProgress:
    """State of a run.

    Attributes:
        state: ``running``, ``new``, ``interrupted``, or why the last work on it ended.
        in_progress: whether some process works on it.
        stages: in order.
        n_ready: tasks that passed every stage.
        n_calls, n_tokens: of all calls.
        cost_usd: of the calls whose price is known.
        n_unpriced: calls whose price is not known.
        eta_s: estimated seconds for the rows that wait, and for their rows in later stages; a stage without rows counts
            with the mean of all stages. None if no row was made yet.
    """

    state: str
    in_progress: bool
    stages: tuple[StageProgress, ...]
    n_ready: int
    n_calls: int
    n_tokens: int
    cost_usd: float
    n_unpriced: int
    eta_s: float | None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        stages = [{name: getattr(one, name) for name in one.__slots__} for one in self.stages]
        return {name: getattr(self, name) for name in self.__slots__} | {"stages": stages}


def progress(run: SynthesisRun, state: State | None = None, *, starting: bool = False) -> SynthesisProgress:
    """The progress of a run, from its log; ``state`` is that of the log, if it was read already.

    ``starting``: a process was started that is to work on it, and counts as running.
    """
    state = run.state() if state is None else state
    stages: list[StageProgress] = []
    made = [stage for stage in route_of(run.settings.route).stages if stage.make is not None]
    times = {one.name: [row.wall_s for row in state.of_stage(one.name) if not row.edited] for one in made}
    overall = _mean([value for one in times.values() for value in one])
    eta: float | None = 0.0
    coming = 0
    for stage in route_of(run.settings.route).stages:
        rows = state.of_stage(stage.name)
        decisions = [one for (name, _), one in state.decisions.items() if name == stage.name]
        n_waiting = len(waiting(stage, state)) if stage in made else 0
        mean_s = _mean(times.get(stage.name, []))
        stages.append(
            StageProgress(
                stage.name,
                stage.title,
                sum(row.state == "done" for row in rows),
                sum(row.state == "failed" for row in rows),
                decisions.count("accepted"),
                decisions.count("rejected"),
                n_waiting,
                mean_s,
            )
        )
        coming = max(coming, n_waiting)
        if stage in made and coming:
            each = overall if mean_s is None else mean_s
            eta = None if eta is None or each is None else eta + coming * each / run.settings.workers
    in_progress = starting or run.in_progress
    now = "running" if in_progress else state.end or ("interrupted" if state.rows else "new")
    spent = (state.n_calls, state.n_tokens, state.cost_usd, state.n_unpriced)
    n_ready = len(ready(route_of(run.settings.route), state))
    return SynthesisProgress(now, in_progress, tuple(stages), n_ready, *spent, eta)


def _mean(values: list[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
