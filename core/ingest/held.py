"""Records that wait for a silent writer of another machine, so that steps are stored in the order of their calls.

A record is held if its trajectory has records of a silent writer, or if its prompt repeats an answer that no visible
call gave. Later records of the same trajectory wait behind it. Positions go on meanwhile: which records are held is
stored in the same transaction, so each is stored exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from core.ingest.linker import Linker
from core.ingest.writers import OtherWriters
from core.journal import Record
from core.types import Step

_ORDERED = frozenset({"call", "steps", "register", "complete"})
"""Kinds of records that belong to trajectories. The others are never held."""

Recorders = Callable[[Collection[str], Collection[str]], Iterable[tuple[str, str]]]
"""(trajectories, writers) -> the pairs of them for which the pool has a step."""


class HeldRecord(NamedTuple):
    """The place of a held record, when it was written (UTC seconds), its trajectories, and the writers it waits for."""

    segment: str
    offset: int
    next_offset: int
    written_at: float
    trajectories: tuple[str, ...]
    waits_for: tuple[str, ...]


class HeldRecords:
    """The held records, in order of time."""

    def __init__(self, held: Iterable[HeldRecord] = ()) -> None:
        self._held = sorted(held, key=_order)
        self._decided: Mapping[str, float | None] | None = None

    def __len__(self) -> int:
        return len(self._held)

    @property
    def oldest_at(self) -> float | None:
        """When the oldest was written, UTC seconds; None when nothing is held."""
        return self._held[0].written_at if self._held else None

    def replace(self, released: Collection[HeldRecord], held: Iterable[HeldRecord]) -> None:
        """Apply a committed batch: ``released`` are stored or held anew, ``held`` are held from now on."""
        gone = set(released)
        self._held = sorted([*(one for one in self._held if one not in gone), *held], key=_order)

    def to_decide(self, others: OtherWriters) -> tuple[list[HeldRecord], set[str]]:
        """(records to decide again in order of time, trajectories that wait whatever these are).

        If no watermark that a record waits for has moved, nothing has to be decided, and all of them wait.
        """
        state = self._state(others)
        if state and self._decided == state:
            return [], {uid for one in self._held for uid in one.trajectories}
        return self._held, set()

    def decided(self, others: OtherWriters) -> None:
        """All of them were decided with these watermarks."""
        self._decided = self._state(others)

    def _state(self, others: OtherWriters) -> Mapping[str, float | None]:
        return {writer: others.present.get(writer) for one in self._held for writer in one.waits_for}


class Holding:
    """Decides for the records of one batch, in order of time, which ones wait.

    Args:
        others: the writers of other machines.
        blocked: trajectories of which an earlier record waits; those of records that are held are added.
        named: the trajectories of the batch, so that the pool is asked once.
        linker: as the batch's earlier steps left it.
        recorders: asks the pool.
    """

    def __init__(
        self, others: OtherWriters, blocked: set[str], named: Iterable[str], linker: Linker, recorders: Recorders
    ) -> None:
        self._others, self._linker, self._ask = others, linker, recorders
        self.blocked = blocked
        self._named = set(named)
        self._stored: dict[str, set[str]] = {}
        self._placed: dict[str, set[str]] = {}

    def held(self, record: Record, at: float, kind: str, content: Any) -> HeldRecord | None:
        """The record's entry if it has to wait, else None."""
        if kind not in _ORDERED:
            return None
        missing = self._others.missing_at(at) - {_writer(record.segment)}
        if not missing and not self.blocked:
            return None
        steps: Sequence[Step] = content if kind in ("steps", "call") else ()
        named = {step.trajectory_uid for step in steps} if steps else {content["trajectory_uid"]}
        named.discard("")
        waits_for: set[str] = set()
        # The choices of a call have one prompt.
        for step in steps[:1] if kind == "call" else steps:
            uid, answer_is_known = self._linker.evidence(step)
            named |= {uid} if uid else set()
            if not answer_is_known:
                waits_for |= missing
        if missing:
            for uid in named:
                waits_for |= missing & self._writers_of(uid)
        if kind == "complete" and not self._linker.has_steps(content["trajectory_uid"]):
            waits_for |= missing
        if not waits_for and self.blocked.isdisjoint(named):
            return None
        self.blocked |= named
        return HeldRecord(
            record.segment, record.offset, record.next_offset, at, tuple(sorted(named)), tuple(sorted(waits_for))
        )

    def recorded(self, trajectory_uid: str, segment: str) -> None:
        """A step of the batch was placed."""
        if (writer := _writer(segment)) in self._others.present:
            self._placed.setdefault(trajectory_uid, set()).add(writer)

    def _writers_of(self, trajectory_uid: str) -> set[str]:
        """The writers of other machines that recorded steps of the trajectory."""
        if trajectory_uid not in self._stored:
            unknown = (self._named | {trajectory_uid}) - self._stored.keys()
            self._stored |= {uid: set() for uid in unknown}
            for uid, writer in self._ask(unknown, self._others.present):
                self._stored[uid].add(writer)
        return self._stored[trajectory_uid] | self._placed.get(trajectory_uid, set())


def still_waits(held: HeldRecord, others: OtherWriters, blocked: set[str]) -> bool:
    """Whether a held record goes on waiting; its trajectories are then added to ``blocked``."""
    waits = not others.missing_at(held.written_at).isdisjoint(held.waits_for) or not blocked.isdisjoint(
        held.trajectories
    )
    if waits:
        blocked.update(held.trajectories)
    return waits


def _order(held: HeldRecord) -> tuple[float, str, int]:
    return held.written_at, held.segment, held.offset


def _writer(segment: str) -> str:
    return segment.rpartition("-")[0]
