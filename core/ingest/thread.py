"""The ingest thread: reads the journal in bounded batches and appends each with its read position."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import InvalidInput, JournalError, StudioError
from core.ingest.batches import Batch, BatchBuilder
from core.ingest.contents import UNREADABLE, reason_of
from core.ingest.expected import ExpectedPositions
from core.ingest.held import HeldRecord, HeldRecords, still_waits
from core.ingest.lag import LagMeter
from core.ingest.linker import Linker
from core.ingest.order import read_in_order
from core.ingest.retokenize import Retokenizer
from core.ingest.writers import OtherWriters
from core.journal import JournalItem, JournalReader, Record, Watermarks
from core.pool import Pool

MAX_RECORDS = 2048
MAX_BATCH_BYTES = 128 << 20
"""Bytes of records in a batch. A transaction costs the planning of some 30 statements, whatever it stores."""
WAIT_S = 0.5
PAUSE_S, MAX_PAUSE_S = 0.15, 0.3
PAUSE_PER_CPU_S = 2.0
"""After a batch that reached the journal's end, so that a slow trickle is stored in few transactions: this many times
the processor seconds of the batch, within these bounds, seconds."""
BACKOFF_S = 1.0
SHIPPING_S = 0.05
"""Between looks for records of other machines, seconds."""

_log = logging.getLogger(__name__)


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
        self._builder = BatchBuilder(self._dir, pool, self._linker, Retokenizer(tokenizers or {}))
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
    def n_late(self) -> int:
        """Calls of other machines that were stored after a later call of their trajectory."""
        return self._builder.n_late

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
            begun = time.thread_time()
            try:
                n = self.run_once()
            except StudioError as error:
                _log.error("ingest stands still: %s", error.message)
                self._stopping.wait(BACKOFF_S)
                continue
            if n == 0:
                self._wait(SHIPPING_S if self._others.until else WAIT_S)
            elif self._whole_round == self._n_rounds:
                self._stopping.wait(pause_s(time.thread_time() - begun))

    def _one_batch(self) -> int:
        self._n_rounds += 1
        try:
            items, to_the_end, blocked = self._read()
            if items:
                try:
                    self._store(items, set(blocked))
                except UNREADABLE as error:
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
            except UNREADABLE as error:
                self._linker.forget()
                if not isinstance(error, InvalidInput) and isinstance(error, StudioError):
                    raise
                batch = Batch(errors=[(record.segment, record.next_offset, reason_of(error))])
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
        drafted = self._builder.read(records, batch)
        # As late as possible, since a step that is deleted meanwhile can't be a parent.
        self._forget_deleted()
        self._builder.place(drafted, batch, self._others, blocked, any_held=bool(self._held))
        if batch != Batch():
            self._append(batch)
        self._linker.batch_committed()

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


def pause_s(batch_cpu_s: float) -> float:
    """How long to wait after a batch that took this much processor time and reached the journal's end, seconds."""
    return min(max(PAUSE_S, PAUSE_PER_CPU_S * batch_cpu_s), MAX_PAUSE_S)


def _held_record(row: Mapping[str, Any]) -> HeldRecord:
    return HeldRecord(
        row["segment"],
        row["record_offset"],
        row["next_offset"],
        row["written_at"],
        tuple(row["trajectories"]),
        tuple(row["waits_for"]),
    )
