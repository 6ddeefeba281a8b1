"""Turns a run of journal records into the content of one pool transaction."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from core.ingest.contents import STEP_KINDS, UNREADABLE, read_record, reason_of
from core.ingest.held import HeldRecord, Holding, still_waits
from core.ingest.linker import Linker
from core.ingest.order import time_of
from core.ingest.reader import RecordReader
from core.ingest.retokenize import Retokenizer
from core.ingest.writers import OtherWriters
from core.journal import Damage, JournalItem, Record, quarantine_bytes, read_segment
from core.pool import Pool
from core.types import PolicyEvent, Step

SAME_TIME_S = 0.25
"""Seconds. Calls that end together may be recorded in either order."""

Drafted = tuple[Record | HeldRecord, str, Any]
"""A record, its kind and its content; a held record's are read when it is placed."""

_log = logging.getLogger(__name__)


@dataclass
class Batch:
    """The content of a run of records, for one ``pool.steps.append``."""

    steps: list[Step] = field(default_factory=list)
    registrations: list[Mapping[str, Any]] = field(default_factory=list)
    completions: list[Mapping[str, Any]] = field(default_factory=list)
    policy_events: list[PolicyEvent] = field(default_factory=list)
    sessions: list[Mapping[str, Any]] = field(default_factory=list)
    revocations: list[Mapping[str, Any]] = field(default_factory=list)
    feedback: list[Mapping[str, Any]] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    errors: list[tuple[str, int, str]] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    held: list[HeldRecord] = field(default_factory=list)
    released: list[HeldRecord] = field(default_factory=list)


class BatchBuilder:
    """Reads, links and places the records of one batch after another.

    Args:
        journal_dir: folder of the segments.
        pool: what it deleted and who recorded a trajectory.
        linker: places steps in their trajectories.
        retokenizer: fills in tokens of answers that came as text only.

    Attributes:
        n_late: calls of other machines that were stored after a later call of their trajectory.
    """

    def __init__(self, journal_dir: Path, pool: Pool, linker: Linker, retokenizer: Retokenizer) -> None:
        self._dir = journal_dir
        self._pool = pool
        self._linker = linker
        self._retokenizer = retokenizer
        self._reader = RecordReader()
        self.n_late = 0

    def read(self, records: Sequence[JournalItem | HeldRecord], batch: Batch) -> list[Drafted]:
        """The records' contents in their order; positions, damages and errors go into the batch."""
        drafted: list[Drafted] = []
        for one in records:
            if isinstance(one, HeldRecord):
                drafted.append((one, "", None))
                continue
            batch.positions[one.segment] = one.next_offset
            if isinstance(one, Damage):
                batch.damages.append(self._kept(one))
            elif isinstance(one, Record) and (entry := self._draft(one, batch)) is not None:
                drafted.append((one, *entry))
        return drafted

    def place(
        self, drafted: Sequence[Drafted], batch: Batch, others: OtherWriters, blocked: set[str], *, any_held: bool
    ) -> None:
        """Place what ``read`` returned.

        Args:
            blocked: trajectories of which earlier records wait for another machine's writer.
            any_held: whether records wait at all.
        """
        drafts = [step for _, kind, parsed in drafted if kind in STEP_KINDS for step in parsed]
        self._linker.preload(drafts)
        holding: Holding | None = None
        if others.until or any_held:
            named = {step.trajectory_uid for step in drafts}
            holding = Holding(others, blocked, named, self._linker, self._pool.journal.recorders)
        for record, kind, parsed in drafted:
            if holding is not None:
                self._place_in_order(record, kind, parsed, batch, holding, others)
            else:
                self._place(kind, parsed, batch)

    def _draft(self, record: Record, batch: Batch) -> tuple[str, Any] | None:
        """(kind, content) of a record; None if nothing is left of it."""
        try:
            kind, parsed = read_record(record, self._reader)
        except UNREADABLE as error:
            batch.errors.append((record.segment, record.next_offset, reason_of(error)))
            return None
        if kind in STEP_KINDS:
            parsed = [self._retokenizer.fill(step) for step in parsed]
        parsed = self._not_deleted(kind, parsed, record)
        return None if parsed is None else (kind, parsed)

    def _place_in_order(
        self, record: Record | HeldRecord, kind: str, parsed: Any, batch: Batch, holding: Holding, others: OtherWriters
    ) -> None:
        """Place a record, or hold it, if a writer of another machine may still deliver earlier ones."""
        if isinstance(record, HeldRecord):
            if still_waits(record, others, holding.blocked):
                return
            batch.released.append(record)
            whole = next(read_segment(self._dir, record.segment, record.offset), None)
            if whole is None or whole.offset != record.offset:
                batch.errors.append((record.segment, record.next_offset, "the held record is damaged or gone"))
                return
            if (entry := self._draft(whole, batch)) is None:
                return
            record, (kind, parsed) = whole, entry
        at = time_of(record)
        held = None if at is None else holding.held(record, at, kind, parsed)
        if held is not None:
            batch.held.append(held)
            return
        n_before = len(batch.steps)
        if kind == "call" and record.segment.rpartition("-")[0] in others.until:
            parsed = self._marked_if_late(parsed)
        self._place(kind, parsed, batch)
        for step in batch.steps[n_before:]:
            holding.recorded(step.trajectory_uid, record.segment)

    def _marked_if_late(self, choices: Sequence[Step]) -> Sequence[Step]:
        """The choices of a call of another machine, marked if a later call of their trajectory was stored before."""
        uid = choices[0].trajectory_uid or self._linker.evidence(choices[0])[0]
        latest = None if uid is None else self._linker.finished_at(uid)
        behind_s = 0.0 if latest is None else latest - (choices[0].created_at + (choices[0].latency_s or 0.0))
        if behind_s <= SAME_TIME_S:
            return choices
        self.n_late += 1
        reason = f"a call of its trajectory that ended {behind_s:.1f} s later was stored before it"
        return [replace(step, metadata={**step.metadata, "stored_late": reason}) for step in choices]

    def _place(self, kind: str, parsed: Any, batch: Batch) -> None:
        if kind == "steps":
            batch.steps.extend(self._linker.place(step) for step in parsed)
        elif kind == "call":
            self._place_choices(parsed, batch)
        elif kind == "complete":
            batch.completions.append(parsed)
            self._linker.close(parsed["trajectory_uid"])
        elif kind == "register":
            batch.registrations.append(parsed)
            self._linker.register(parsed["trajectory_uid"], parsed["metadata"])
        elif kind == "session":
            batch.sessions.append(parsed)
        elif kind == "revoke":
            batch.revocations.append(parsed)
        elif kind == "feedback":
            batch.feedback.extend(parsed)
        else:
            batch.policy_events.append(parsed)

    def _place_choices(self, choices: Sequence[Step], batch: Batch) -> None:
        """The choices of one call are siblings, those of each of its prompts."""
        firsts: dict[int, Step] = {}
        for step in choices:
            number = step.metadata.get("prompt_number", 0)
            placed = self._linker.place(step, sibling_of=firsts.get(number))
            firsts.setdefault(number, placed)
            batch.steps.append(placed)

    def _kept(self, damage: Damage) -> Damage:
        """Copy the bad bytes to a file beside their segment; returns the damage with that file's name."""
        try:
            reason = f"{damage.reason}; kept in {quarantine_bytes(self._dir, damage).name}"
        except OSError as error:
            reason = f"{damage.reason}; no copy could be made: {error.strerror}"
        _log.error("the journal is damaged at %s:%d: %s", damage.segment, damage.offset, reason)
        return damage._replace(reason=reason)

    def _not_deleted(self, kind: str, parsed: Any, record: Record) -> Any:
        """The record's content without deleted items, which occur only in a rebuild; None: nothing is left."""
        if not self._pool.recovery.forgets_any:
            return parsed

        def is_kept(name: str, uid: str) -> bool:
            return not self._pool.recovery.forgets(name, uid, record.segment, record.offset)

        if kind in STEP_KINDS:
            return [step for step in parsed if is_kept("step", step.step_uid)] or None
        if kind == "feedback":
            return [item for item in parsed if is_kept("feedback", item["feedback_uid"])] or None
        if kind in ("complete", "register"):
            return parsed if is_kept("trajectory", parsed["trajectory_uid"]) else None
        return parsed
