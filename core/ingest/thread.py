"""The ingest thread: reads the journal in bounded batches and appends each with its read position."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from core.checked import checked
from core.errors import InvalidInput, JournalError, StudioError
from core.ingest.drafts import draft_of_wire, drafts_of_call
from core.ingest.expected import ExpectedPositions
from core.ingest.feedback import feedback_entry
from core.ingest.fields import (
    FeedbackFields,
    PolicyFields,
    RevokeFields,
    SessionFields,
    StepsFields,
    TrajectoryFields,
)
from core.ingest.held import HeldRecord, HeldRecords, Holding, still_waits
from core.ingest.lag import LagMeter
from core.ingest.linker import Linker
from core.ingest.order import read_in_order, time_of
from core.ingest.reader import RecordReader
from core.ingest.retokenize import Retokenizer
from core.ingest.writers import OtherWriters
from core.journal import (
    Damage,
    JournalItem,
    JournalReader,
    Record,
    Watermarks,
    quarantine_bytes,
    read_segment,
)
from core.pool import Pool
from core.types import PolicyEvent, Step

MAX_RECORDS = 2048
MAX_BATCH_BYTES = 64 << 20
WAIT_S = 0.5
PAUSE_S = 0.15
"""Between batches that were not full, so that a slow trickle is stored in few transactions, seconds."""
BACKOFF_S = 1.0
SAME_TIME_S = 0.25
"""Seconds. Calls that end together may be recorded in either order."""
SHIPPING_S = 0.05
"""Between looks for records of other machines, seconds."""

_log = logging.getLogger(__name__)
_STEPS = frozenset({"steps", "call"})
"""Kinds of records that hold steps."""
_UNREADABLE = (StudioError, KeyError, TypeError, ValueError, OverflowError, RecursionError)
"""Exceptions of malformed records. Any other exception is a bug or a broken disk, and stops the batch."""


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


class Ingest:
    """Moves the journal into the pool, exactly once: position and steps are written in the same transaction.

    Args:
        journal_dir: folder of the segments.
        pool: where steps go.
        wait: blocks up to the given seconds; True when records were synced (``Journal.wait``).
        clock: UTC seconds; that of the records and watermarks.
        tokenizers: for answers that come as text only, see ``Retokenizer``.
    """

    def __init__(
        self,
        journal_dir: Path,
        pool: Pool,
        *,
        wait: Callable[[float], bool],
        clock: Callable[[], float],
        tokenizers: Mapping[str, Path] | None = None,
    ) -> None:
        self._dir = Path(journal_dir)
        self._pool = pool
        self._wait = wait
        self._clock = clock
        self._linker = Linker(pool.trajectories)
        self._n_deletions = pool.retention.n_deletions
        self._journal = JournalReader(self._dir)
        self._reader = RecordReader()
        self._retokenizer = Retokenizer(tokenizers or {})
        self._positions = pool.journal.positions()
        self._watermarks = Watermarks(self._dir)
        self._others = OtherWriters({}, clock())
        self._held = HeldRecords(_held_record(row) for row in pool.journal.held())
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lag = LagMeter(self._dir, clock)
        self._expected = ExpectedPositions()
        self._n_rounds = 0
        self._whole_round = 0
        self._whole_until = 0.0
        self._wanted = False
        self._failure: str | None = None
        self.n_ingested = 0
        self.n_late = 0
        self.n_damages = pool.journal.n_damages()

    def start(self) -> None:
        """Start the thread, again if it has ended."""
        self._wanted = True
        if self._thread is None or not self._thread.is_alive():
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)
            self._thread.start()

    def stop(self, wake: Callable[[], None] | None = None) -> None:
        """Stop after the current batch; the rest of the journal is read at the next start.

        ``wake`` ends a running ``wait`` (``Journal.notice``), so that the stop is immediate.
        """
        self._wanted = False
        self._stopping.set()
        if wake is not None:
            wake()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def running(self) -> bool:
        """False if the thread has ended though it was started and not stopped."""
        return not self._wanted or (self._thread is not None and self._thread.is_alive())

    @property
    def last_error(self) -> str | None:
        """Why ingest makes no progress now; None when it works."""
        return self._failure if self.running else "the ingest thread has ended"

    @property
    def lag_s(self) -> float:
        """Age of the oldest record that is journalled and not in the pool yet, seconds; 0 when there is none."""
        return max(self.unread_s, self.held_s)

    @property
    def unread_s(self) -> float:
        """The same without records that are held, see ``held_s``.

        It is measured at the journal's end by the caller's thread, so it also grows if the ingest thread hangs.
        """
        return self._lag.seconds(lambda: dict(self._positions))

    @property
    def n_held(self) -> int:
        """How many records wait for a silent writer of another machine."""
        return len(self._held)

    @property
    def held_s(self) -> float:
        """Age of the oldest of them, seconds; 0 when there is none."""
        oldest_at = self._held.oldest_at
        return 0.0 if oldest_at is None else max(0.0, self._clock() - oldest_at)

    def other_writers(self) -> list[dict[str, Any]]:
        """The writers of other machines, ``{writer, behind_s, state}`` each; empty on a single machine."""
        try:
            return OtherWriters(self._watermarks.read(), self._clock()).status()
        except JournalError:
            return self._others.status()

    def catch_up(self, timeout_s: float) -> bool:
        """Bring in all that was synced when called; False when that took too long or failed.

        Concurrent callers share batches: a batch that began after a call, and read the journal to its end, serves it.
        If other machines write, that takes until their writers are visible up to the time of the call, but records that
        are held are not waited for.
        """
        deadline = time.monotonic() + timeout_s
        begun_before, called_at = self._n_rounds, self._clock()
        try:
            while (remaining_s := deadline - time.monotonic()) > 0:
                if not self._lock.acquire(timeout=remaining_s):
                    return False
                try:
                    if self._whole_round > begun_before and self._whole_until >= called_at:
                        return True
                    n_before, whole_before = self.n_ingested, self._whole_round
                    self._one_batch()
                    waits = self._whole_round > whole_before and self.n_ingested == n_before
                finally:
                    self._lock.release()
                if waits and self._whole_until < called_at:
                    time.sleep(min(SHIPPING_S, remaining_s))
        except StudioError as error:
            _log.warning("ingest could not catch up: %s", error.message)
        return False

    def expect(self, positions: Iterable[tuple[str, int]]) -> None:
        """Note records, ``(segment, offset)`` each, that later reads must see: see ``settle``."""
        self._expected.add(positions)

    @property
    def settled(self) -> bool:
        """Whether the pool holds every record given to ``expect``."""
        return self._expected.reached(self._positions)

    def settle(self, timeout_s: float) -> bool:
        """Bring in the records given to ``expect``, if some are missing; False when that took too long or failed."""
        return self.settled or self.catch_up(timeout_s)

    def run_once(self) -> int:
        """Read and store one batch in the calling thread; how many records it held."""
        with self._lock:
            return self._one_batch()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                n = self.run_once()
            except StudioError as error:
                _log.error("ingest stands still: %s", error.message)
                self._stopping.wait(BACKOFF_S)
                continue
            if n == 0:
                self._wait(SHIPPING_S if self._others.until else WAIT_S)
            elif n < MAX_RECORDS:
                self._stopping.wait(PAUSE_S)

    def _one_batch(self) -> int:
        self._n_rounds += 1
        try:
            items, to_the_end, blocked = self._read()
            if items:
                try:
                    self._store(items, set(blocked))
                except _UNREADABLE as error:
                    self._linker.forget()
                    if not isinstance(error, InvalidInput) and isinstance(error, StudioError):
                        raise
                    self._store_one_by_one(items, blocked)
        except Exception as error:
            self._linker.forget()
            self._failure = f"ingest failed: {error!r}" if not isinstance(error, StudioError) else str(error)
            if isinstance(error, StudioError):
                raise
            raise StudioError(self._failure) from error
        self._failure = None
        if to_the_end:
            self._whole_round = self._n_rounds
            # On a single machine all is visible, whatever the clock says.
            self._whole_until = self._others.horizon if self._others.until else math.inf
            self._held.decided(self._others)
        self.n_ingested += sum(isinstance(one, Record) for one in items)
        return sum(not isinstance(one, HeldRecord) for one in items)

    def _read(self) -> tuple[list[JournalItem | HeldRecord], bool, set[str]]:
        """The next batch, whether it reaches the journal's end, and trajectories of which earlier records wait."""
        self._others = others = OtherWriters(self._watermarks.read(), self._clock())
        waiting, blocked = self._held.to_decide(others)
        unread = read_in_order(
            self._journal, self._positions, now=others.horizon, elsewhere=bool(others.until), held=waiting
        )
        items: list[JournalItem | HeldRecord] = []
        n_new = n_bytes = 0
        waiting_uids = set(blocked)
        for one in unread:
            items.append(one)
            n_new += not isinstance(one, HeldRecord)
            if isinstance(one, Record) or (isinstance(one, HeldRecord) and not still_waits(one, others, waiting_uids)):
                n_bytes += one.next_offset - one.offset
            if n_new >= MAX_RECORDS or n_bytes >= MAX_BATCH_BYTES:
                return items, False, blocked
        return items, True, blocked

    def _store_one_by_one(self, records: Sequence[JournalItem | HeldRecord], blocked: set[str]) -> None:
        """After a batch failed: find the record that can't be stored, and store its position and reason instead."""
        for record in records:
            try:
                self._store([record], blocked)
            except _UNREADABLE as error:
                self._linker.forget()
                if not isinstance(error, InvalidInput) and isinstance(error, StudioError):
                    raise
                batch = Batch(errors=[(record.segment, record.next_offset, _reason(error))])
                if isinstance(record, HeldRecord):
                    batch.released.append(record)
                else:
                    batch.positions[record.segment] = record.next_offset
                self._append(batch)

    def _forget_deleted(self) -> None:
        """A deleted step can't be a parent."""
        n = self._pool.retention.n_deletions
        if self._n_deletions != n:
            changed = self._pool.retention.changed_since(self._n_deletions)
            if changed is None:
                self._linker.forget()
            else:
                self._linker.drop(*changed)
            self._n_deletions = n

    def _store(self, records: Sequence[JournalItem | HeldRecord], blocked: set[str]) -> None:
        batch = Batch()
        drafted: list[tuple[Record | HeldRecord, str, Any]] = []
        for one in records:
            if isinstance(one, HeldRecord):
                drafted.append((one, "", None))
                continue
            batch.positions[one.segment] = one.next_offset
            if isinstance(one, Damage):
                batch.damages.append(self._kept(one))
            elif isinstance(one, Record) and (entry := self._draft(one, batch)) is not None:
                drafted.append((one, *entry))
        self._forget_deleted()
        drafts = [step for _, kind, parsed in drafted if kind in _STEPS for step in parsed]
        self._linker.preload(drafts)
        holding: Holding | None = None
        if self._others.until or self._held:
            named = {step.trajectory_uid for step in drafts}
            holding = Holding(self._others, blocked, named, self._linker, self._pool.journal.recorders)
        for record, kind, parsed in drafted:
            if holding is not None:
                self._place_in_order(record, kind, parsed, batch, holding)
            else:
                self._place(kind, parsed, batch)
        if batch != Batch():
            self._append(batch)
        self._linker.batch_committed()

    def _draft(self, record: Record, batch: Batch) -> tuple[str, Any] | None:
        """(kind, content) of a record; None if nothing is left of it."""
        try:
            kind, parsed = _read_record(record, self._reader)
        except _UNREADABLE as error:
            batch.errors.append((record.segment, record.next_offset, _reason(error)))
            return None
        if kind in _STEPS:
            parsed = [self._retokenizer.fill(step) for step in parsed]
        parsed = self._not_deleted(kind, parsed, record)
        return None if parsed is None else (kind, parsed)

    def _place_in_order(
        self, record: Record | HeldRecord, kind: str, parsed: Any, batch: Batch, holding: Holding
    ) -> None:
        """Place a record, or hold it, if a writer of another machine may still deliver earlier ones."""
        if isinstance(record, HeldRecord):
            if still_waits(record, self._others, holding.blocked):
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
        if kind == "call" and record.segment.rpartition("-")[0] in self._others.until:
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

        if kind in _STEPS:
            return [step for step in parsed if is_kept("step", step.step_uid)] or None
        if kind == "feedback":
            return [item for item in parsed if is_kept("feedback", item["feedback_uid"])] or None
        if kind in ("complete", "register"):
            return parsed if is_kept("trajectory", parsed["trajectory_uid"]) else None
        return parsed

    def _append(self, batch: Batch) -> None:
        self._pool.steps.append(
            batch.steps,
            registrations=batch.registrations,
            completions=batch.completions,
            policy_events=batch.policy_events,
            sessions=batch.sessions,
            revocations=batch.revocations,
            feedback=batch.feedback,
            positions=batch.positions,
            errors=batch.errors,
            damages=[(one.segment, one.offset, one.next_offset, one.reason) for one in batch.damages],
            held=batch.held,
            released=[(one.segment, one.offset) for one in batch.released],
        )
        self._positions.update(batch.positions)
        self._held.replace(batch.released, batch.held)
        if batch.damages:
            self.n_damages = self._pool.journal.n_damages()


def _read_record(record: Record, reader: RecordReader) -> tuple[str, Any]:
    """(kind, content): steps for ``steps`` and ``call``, a checked mapping or event for the others."""
    content = reader.parse(record.payload)
    kind = content["kind"]
    if kind == "call":
        return "call", drafts_of_call(content, record.segment, record.offset)
    if kind == "steps":
        steps = checked(StepsFields, content)
        return "steps", [draft_of_wire(step, steps.at, record.segment, record.offset) for step in steps.steps]
    if kind == "policy":
        event = checked(PolicyFields, content)
        return "policy", PolicyEvent(event.version, event.event, event.at, event.metadata)
    if kind == "feedback":
        feedback = checked(FeedbackFields, content)
        return "feedback", [feedback_entry(item, feedback.at) for item in feedback.feedback]
    if kind == "revoke":
        return "revoke", asdict(checked(RevokeFields, content))
    fields = asdict(checked(SessionFields if kind == "session" else TrajectoryFields, content))
    for name in ("prompt_uid", "channel", "agent", "outcome"):
        fields[name] = fields[name] or None
    if kind == "session":
        fields["channel"] = fields["channel"] or "train"
    return kind, fields


def _reason(error: BaseException) -> str:
    if isinstance(error, StudioError):
        return f"{error.field}: {error.message}" if error.field else error.message
    return repr(error)


def _held_record(row: Mapping[str, Any]) -> HeldRecord:
    return HeldRecord(
        row["segment"],
        row["record_offset"],
        row["next_offset"],
        row["written_at"],
        tuple(row["trajectories"]),
        tuple(row["waits_for"]),
    )
