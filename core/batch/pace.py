"""The pace of consumption: weight syncs and their durations, and how long the ready groups will last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.types import PolicyEvent, PolicyEventKind


@dataclass(frozen=True, slots=True)
class Sync:
    """One weight sync: its start and finish, seconds since the epoch.

    ``finished_at`` None: it runs, or never finished. ``started_at`` None: the trainer reported only the finish.
    """

    version: int
    started_at: float | None
    finished_at: float | None

    @property
    def duration_s(self) -> float | None:
        """Seconds; None while it runs, and without a reported start."""
        return None if self.finished_at is None or self.started_at is None else self.finished_at - self.started_at


def syncs(events: Sequence[PolicyEvent]) -> list[Sync]:
    """Weight syncs, oldest first. A start that is followed by another start never finished; a registration is none."""
    weight_syncs: list[Sync] = []
    running: PolicyEvent | None = None
    for event in sorted(events, key=lambda one: one.created_at):
        if event.event == PolicyEventKind.SYNC_STARTED:
            if running is not None:
                weight_syncs.append(Sync(running.version, running.created_at, None))
            running = event
        elif event.event == PolicyEventKind.SYNC_FINISHED:
            begun = None if running is None else running.created_at
            weight_syncs.append(Sync(event.version, begun, event.created_at))
            running = None
    if running is not None:
        weight_syncs.append(Sync(running.version, running.created_at, None))
    return weight_syncs


def runs_of(values: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Values of a trainer metric by run: a consumer begins another run when its update counts from the start again.

    Args:
        values: rows with ``consumer`` and ``update_index``, oldest first; values without an update stay in one run.

    Returns:
        Name of the run -> its rows. The name is the consumer's, with ``run 2`` and so on from the second run.
    """
    runs: dict[str, list[Mapping[str, Any]]] = {}
    n_runs: dict[str, int] = {}
    last: dict[str, int] = {}
    for row in values:
        consumer, update = str(row["consumer"]), row["update_index"]
        if consumer not in n_runs or (update is not None and consumer in last and update < last[consumer]):
            n_runs[consumer] = n_runs.get(consumer, 0) + 1
        if update is not None:
            last[consumer] = update
        number = n_runs[consumer]
        runs.setdefault(consumer if number == 1 else f"{consumer}, run {number}", []).append(row)
    return runs


@dataclass(frozen=True, slots=True)
class Pace:
    """Groups consumed and the time over which they were.

    Attributes:
        n_groups: acknowledged since ``since``.
        since, now: UTC seconds.
    """

    n_groups: int
    since: float
    now: float

    @property
    def groups_per_s(self) -> float | None:
        """None before anything was consumed."""
        seconds = self.now - self.since
        return self.n_groups / seconds if self.n_groups and seconds > 0 else None

    def starves_in_s(self, n_ready: int) -> float | None:
        """How long the ready groups last at this pace if none is added; None when nothing is consumed."""
        rate = self.groups_per_s
        return None if rate is None else n_ready / rate


def pace(batches: Sequence[Mapping[str, Any]], now: float, window_s: float = 600.0) -> Pace:
    """The pace of the last ``window_s`` seconds, or since the first batch, from rows of ``pool.batches``."""
    finished = [one for one in batches if one["state"] == "acked" and one["finished_at"] is not None]
    recent = [one for one in finished if one["finished_at"] >= now - window_s]
    if not recent:
        return Pace(0, now - window_s, now)
    earlier = len(recent) < len(finished)
    begun = now - window_s if earlier else min(one["leased_at"] for one in recent)
    return Pace(sum(one["n_groups"] for one in recent), max(begun, now - window_s), now)
