"""The ingest thread: reads the journal in bounded batches and appends each with its read position."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from core.errors import InvalidInput, StudioError
from core.ingest.drafts import draft_of_wire, drafts_of_call, mapping, maybe_number, maybe_text, number, objects, text
from core.ingest.feedback import feedback_entry
from core.ingest.linker import Linker
from core.ingest.order import read_in_order
from core.ingest.reader import RecordReader
from core.ingest.retokenize import Retokenizer
from core.journal import Record
from core.pool import Pool
from core.records import parse
from core.types import PolicyEvent, Step

MAX_RECORDS = 512
MAX_BATCH_BYTES = 64 << 20
WAIT_S = 0.5
PAUSE_S = 0.15
"""Between batches that were not full, so that a slow trickle is stored in few transactions, seconds."""
BACKOFF_S = 1.0

_log = logging.getLogger(__name__)
_STEPS = frozenset({"steps", "call"})
"""Kinds of records that hold steps."""
_UNREADABLE = (StudioError, KeyError, TypeError, ValueError, OverflowError, RecursionError)
"""What a record of the wrong form raises; anything else is a bug or a broken disk, and stops the batch."""


@dataclass
class Batch:
    """What a run of records says, ready for one ``Pool.append``."""

    steps: list[Step] = field(default_factory=list)
    registrations: list[Mapping[str, Any]] = field(default_factory=list)
    completions: list[Mapping[str, Any]] = field(default_factory=list)
    policy_events: list[PolicyEvent] = field(default_factory=list)
    sessions: list[Mapping[str, Any]] = field(default_factory=list)
    revocations: list[Mapping[str, Any]] = field(default_factory=list)
    feedback: list[Mapping[str, Any]] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    errors: list[tuple[str, int, str]] = field(default_factory=list)


class Ingest:
    """Moves the journal into the pool. Exactly once: the position stands in the same transaction as the steps.

    Args:
        journal_dir: folder of the segments.
        pool: where steps go.
        wait: blocks up to so many seconds, True when something was synced (``Journal.wait``).
        clock: UTC seconds.
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
        self._linker = Linker(pool)
        self._reader = RecordReader()
        self._retokenizer = Retokenizer(tokenizers or {})
        self._positions = pool.positions()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._oldest_at: float | None = None
        self.n_ingested = 0
        self.last_error: str | None = None

    def start(self) -> None:
        """Start the thread."""
        if self._thread is None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="ingest", daemon=True)
            self._thread.start()

    def stop(self, wake: Callable[[], None] | None = None) -> None:
        """Stop after the batch under way; what is not read stays in the journal for the next start.

        ``wake`` ends a ``wait`` for more (``Journal.notice``), so that nobody waits for that to pass.
        """
        self._stopping.set()
        if wake is not None:
            wake()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def lag_s(self) -> float:
        """Age of the oldest record known to be journalled and not in the pool yet, seconds; 0 when there is none."""
        oldest = self._oldest_at
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest)

    def catch_up(self, timeout_s: float) -> bool:
        """Bring in all that was synced when called; False when that took too long or failed."""
        deadline = time.monotonic() + timeout_s
        try:
            while (left := deadline - time.monotonic()) > 0:
                if not self._lock.acquire(timeout=left):
                    return False
                try:
                    n = self._one_batch()
                finally:
                    self._lock.release()
                if n == 0:
                    return True
        except StudioError as error:
            _log.warning("ingest could not catch up: %s", error.message)
        return False

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
                self._wait(WAIT_S)
            elif n < MAX_RECORDS:
                self._stopping.wait(PAUSE_S)

    def _one_batch(self) -> int:
        records = self._read()
        if not records:
            self._oldest_at = None
            return 0
        self._oldest_at = _at(records[0])
        try:
            try:
                self._store(records)
            except _UNREADABLE as error:
                self._linker.forget()
                if not isinstance(error, InvalidInput) and isinstance(error, StudioError):
                    raise
                self._store_one_by_one(records)
        except Exception as error:
            self._linker.forget()
            self.last_error = str(error)
            if isinstance(error, StudioError):
                raise
            raise StudioError(f"ingest failed: {error!r}") from error
        self.last_error = None
        self._oldest_at = _at(records[-1]) if len(records) >= MAX_RECORDS else None
        self.n_ingested += len(records)
        return len(records)

    def _read(self) -> list[Record]:
        records: list[Record] = []
        n_bytes = 0
        for record in islice(read_in_order(self._dir, self._positions, now=self._clock()), MAX_RECORDS):
            records.append(record)
            n_bytes += len(record.payload)
            if n_bytes >= MAX_BATCH_BYTES:
                break
        return records

    def _store_one_by_one(self, records: Sequence[Record]) -> None:
        """After a batch failed: find the record that can't be stored, and store its position and reason instead."""
        for record in records:
            try:
                self._store([record])
            except _UNREADABLE as error:
                self._linker.forget()
                if not isinstance(error, InvalidInput) and isinstance(error, StudioError):
                    raise
                reason = (record.segment, record.next_offset, _reason(error))
                self._append(Batch(positions={record.segment: record.next_offset}, errors=[reason]))

    def _store(self, records: Sequence[Record]) -> None:
        batch = Batch()
        drafted: list[tuple[str, Any]] = []
        for record in records:
            batch.positions[record.segment] = record.next_offset
            try:
                kind, found = _read_record(record, self._reader)
            except _UNREADABLE as error:
                batch.errors.append((record.segment, record.next_offset, _reason(error)))
                continue
            if kind in _STEPS:
                found = [self._retokenizer.fill(step) for step in found]
            drafted.append((kind, found))
        self._linker.announce({step.trajectory_uid for kind, found in drafted if kind in _STEPS for step in found})
        for kind, found in drafted:
            if kind == "steps":
                batch.steps.extend(self._linker.place(step) for step in found)
            elif kind == "call":
                first = self._linker.place(found[0])
                batch.steps.append(first)
                batch.steps.extend(self._linker.place(step, sibling_of=first) for step in found[1:])
            elif kind == "complete":
                batch.completions.append(found)
                self._linker.close(found["trajectory_uid"])
            elif kind == "register":
                batch.registrations.append(found)
            elif kind == "session":
                batch.sessions.append(found)
            elif kind == "revoke":
                batch.revocations.append(found)
            elif kind == "feedback":
                batch.feedback.extend(found)
            else:
                batch.policy_events.append(found)
        self._append(batch)

    def _append(self, batch: Batch) -> None:
        self._pool.append(
            batch.steps,
            registrations=batch.registrations,
            completions=batch.completions,
            policy_events=batch.policy_events,
            sessions=batch.sessions,
            revocations=batch.revocations,
            feedback=batch.feedback,
            positions=batch.positions,
            errors=batch.errors,
        )
        self._positions.update(batch.positions)


def _read_record(record: Record, reader: RecordReader) -> tuple[str, Any]:
    """(what it is, what it says): steps for ``steps`` and ``call``, a checked mapping or event for the rest."""
    said = reader.parse(record.payload)
    kind = said["kind"]
    if kind == "call":
        return "call", drafts_of_call(said, record.segment, record.offset)
    at = number(said, "at")
    if kind == "steps":
        steps = objects(said, "steps") or []
        return "steps", [draft_of_wire(step, at, record.segment, record.offset) for step in steps]
    if kind == "policy":
        version = said.get("version")
        if not isinstance(version, int) or isinstance(version, bool):
            raise InvalidInput("version is not an integer.", field="version")
        return "policy", PolicyEvent(version, text(said, "event"), at, mapping(said, "metadata"))
    if kind == "feedback":
        return "feedback", [feedback_entry(item, at) for item in objects(said, "feedback") or []]
    if kind == "revoke":
        return "revoke", {"at": at, "key_sha256": text(said, "key_sha256")}
    checked: dict[str, Any] = {"at": at, "trajectory_uid": text(said, "trajectory_uid")}
    for name in ("prompt_uid", "channel", "agent", "outcome"):
        checked[name] = maybe_text(said, name)
    checked["metadata"] = mapping(said, "metadata")
    checked["reward"] = maybe_number(said, "reward")
    if kind == "session":
        checked["key_sha256"] = text(said, "key_sha256")
        checked["channel"] = checked["channel"] or "train"
    return kind, checked


def _reason(error: BaseException) -> str:
    if isinstance(error, StudioError):
        return f"{error.field}: {error.message}" if error.field else error.message
    return repr(error)


def _at(record: Record) -> float | None:
    try:
        at = parse(record.payload).get("at")
    except StudioError:
        return None
    return float(at) if isinstance(at, int | float) else None
