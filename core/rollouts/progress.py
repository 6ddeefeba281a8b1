"""How far a run is: counts by outcome, mean score, and an estimate of the rest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from core.rollouts.attempt import OUTCOMES, Attempt
from core.rollouts.runs import Run

RECENT = 64
"""The estimate uses this many attempts that ended last."""


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a run.

    Attributes:
        in_progress: whether some process works on it.
        n_slots: attempts to make, retries not counted.
        n_waiting, n_running, n_done: of them; an attempt whose newest try was lost counts as waiting.
        outcomes: outcome -> number of attempts, by their newest try.
        n_retries: attempts that were made again.
        n_scored: attempts with a score.
        mean_score: of those; None without any.
        eta_s: estimated seconds until the end; None if nothing has ended or nothing runs.
        mean_s: mean duration of an attempt, seconds.
    """

    in_progress: bool
    n_slots: int
    n_waiting: int
    n_running: int
    n_done: int
    outcomes: dict[str, int]
    n_retries: int
    n_scored: int
    mean_score: float | None
    eta_s: float | None
    mean_s: float | None

    @property
    def state(self) -> str:
        """``running``, ``finished`` (every attempt has an outcome other than lost) or ``stopped``."""
        if self.in_progress:
            return "running"
        return "finished" if self.n_done == self.n_slots else "stopped"

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, with ``state``."""
        return {"state": self.state, **{name: getattr(self, name) for name in self.__slots__}}


def progress(run: Run, *, starting: bool = False) -> Progress:
    """The progress of a run, from its log. ``starting``: a supervisor is on its way, which does not hold it yet."""
    in_progress, newest = starting or run.in_progress, run.newest().values()
    counts = Counter(str(one.outcome) for one in newest if one.state == "done")
    n_running = sum(one.state != "done" for one in newest) if in_progress else 0
    n_done = sum(counts.values()) - counts["lost"]
    n_waiting = run.settings.n_slots - n_done - n_running
    scores = [one.score for one in newest if one.score is not None and one.state == "done"]
    mean_s = mean_duration(list(newest))
    # A resumed run can have another number of workers than its settings; while attempts wait, all of them are busy.
    parallel = n_running or run.settings.workers
    eta_s = None if mean_s is None or not in_progress else (n_waiting + 0.5 * n_running) * mean_s / parallel
    return Progress(
        in_progress=in_progress,
        n_slots=run.settings.n_slots,
        n_waiting=n_waiting,
        n_running=n_running,
        n_done=n_done,
        outcomes={name: counts[name] for name in OUTCOMES if counts[name]},
        n_retries=sum(one.retry for one in newest),
        n_scored=len(scores),
        mean_score=math.fsum(scores) / len(scores) if scores else None,
        eta_s=eta_s,
        mean_s=mean_s,
    )


def mean_duration(attempts: Sequence[Attempt]) -> float | None:
    """Mean seconds from begin to end of the attempts that ended last; None without any."""
    times = sorted(
        (one.ended_at, one.ended_at - one.started_at)
        for one in attempts
        if one.ended_at is not None and one.started_at is not None and one.outcome != "lost"
    )
    recent = [duration for _, duration in times[-RECENT:]]
    return math.fsum(recent) / len(recent) if recent else None
