"""Compaction of the opinions log: a new log with the present rows replaces the log of all changes.

The new log is written while the old one is still in use, read back for a check, and extended by the changes made
meanwhile. Then one commit in the pool's file switches to the new log. The old one is deleted after a checkpoint. A
process may end at any point: until the commit the old log is valid, after it the new one.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from core.errors import OpinionsError, PoolDamaged, StudioError
from core.pool.store.damage import REPAIR_HINT
from core.pool.store.database import Cursor, Database
from core.pool.upkeep.deletion import DELETING
from core.pool.upkeep.loggedtables import snapshot
from core.pool.upkeep.opinionlog import (
    OpinionLog,
    generations,
    log_start,
    new_generation,
    read_generation,
    read_tail,
    remove_generation,
)

log = logging.getLogger(__name__)

LEAST_BYTES = 64 << 20
"""A smaller log is not worth the reading."""
EVERY_S = 60.0
RETRY_S = 1800.0


def needs_compaction(db: Database) -> bool:
    """Whether the log is large, and twice as large as it was when it began."""
    now = db.log
    if now is None or now.n_bytes < LEAST_BYTES:
        return False
    if now.begun_bytes is None:
        begun = log_start(now.directory, now.generation)
        now.begun_bytes = 0 if begun is None else begun.n_bytes
    return now.n_bytes >= 2 * now.begun_bytes


def compact(db: Database) -> int | None:
    """Replace the log by a new one; returns the number of bytes saved.

    None if data was deleted meanwhile; the next call tries again. OpinionsError when the new log can't be written or is
    not read back as it was written; the old one then stays in use. Writers wait only for the last part.
    """
    n_written: Counter[str] = Counter()
    with ExitStack() as looking:
        with db.lock:
            before = db.log
            if before is None:
                return None
            cursor = looking.enter_context(db.read())
            mark, last = before.mark, before.n
            fresh = OpinionLog(before.directory, new_generation(before.directory), 0, db.clock)
        try:
            for name, table in snapshot(cursor):
                fresh.append("snapshot", [(name, table)])
                n_written[name] += len(table)
            looking.close()
            _check(fresh, n_written)
            with db.lock:
                if db.log is before and _copy_changes(before, mark, last, fresh):
                    with db.write() as writing:
                        note_position(writing, fresh, replaces=before.generation)
                    fresh.begun_bytes = fresh.n_bytes
                    db.log = fresh
                    before.close()
        finally:
            if db.log is not fresh:
                fresh.close()
                remove_generation(fresh.directory, fresh.generation)
    if db.log is not fresh:
        return None
    saved = before.n_bytes - fresh.n_bytes
    db.checkpoint()
    remove_generation(before.directory, before.generation)
    log.info("the opinions log was compacted: %d bytes less", saved)
    return saved


def _check(fresh: OpinionLog, n_written: Counter[str]) -> None:
    """OpinionsError where the snapshot is not read back whole."""
    n_read: Counter[str] = Counter()
    numbers = []
    for entry in read_generation(fresh.directory, fresh.generation):
        numbers.append(entry.n)
        for name, table in entry.parts():
            n_read[name] += len(table)
    if n_read != n_written or numbers != list(range(1, fresh.n + 1)):
        raise OpinionsError(
            f"The new opinions log in {fresh.directory} is not read back as it was written.",
            field="data_dir",
            hint="The old one stays in use. Look at the disk.",
        )


def _copy_changes(before: OpinionLog, mark: str, last: int, fresh: OpinionLog) -> bool:
    """Add the changes since the snapshot; False if one is a deletion or restoration, whose rows are in neither log."""
    entries = [entry for entry in read_tail(before.directory, mark) if entry.n > last]
    voided = before.unvoided | {entry.voids for entry in entries if entry.kind == "void"}
    changed = [entry for entry in entries if entry.kind == "change" and entry.n not in voided]
    if any(name in DELETING for entry in changed for name, _ in entry.names):
        return False
    for entry in changed:
        fresh.append("change", entry.parts())
    return True


def note_position(cursor: Cursor, kept: OpinionLog, *, replaces: str | None = None) -> None:
    """Append a record which marks that the file contains all records before it."""
    mark = kept.mark
    n = kept.append("begun", [], **({} if replaces is None else {"replaces": replaces}))
    cursor.execute("DELETE FROM opinions_position")
    cursor.execute("INSERT INTO opinions_position VALUES (?, ?, ?)", [kept.generation, mark, n])


def remove_interrupted_compaction(directory: Path, current: str) -> None:
    """At a start: remove the files of an interrupted compaction and keep the log that the pool's file refers to.

    PoolDamaged if the file is older than the newest log, which has replaced the log that the file refers to.
    """
    starts = generations(directory)
    for name in starts:
        if name <= current:
            continue
        begun = log_start(directory, name)
        if begun is not None and (begun.has_records or current not in starts):
            raise PoolDamaged(
                "The pool's file is older than its opinions log, which was compacted since.",
                field="data_dir",
                hint=REPAIR_HINT,
            )
        # Bytes that are no records are not ours.
        if begun is not None or next(read_generation(directory, name), None) is not None:
            remove_generation(directory, name)
    older = [name for name in starts if name < current]
    if older and (mine := log_start(directory, current)) is not None and mine.replaces in older:
        remove_generation(directory, mine.replaces)


class Compaction:
    """Compacts the log when it pays. Call it often; it checks at intervals."""

    def __init__(self, compact: Callable[[], int | None]) -> None:
        self._compact = compact
        self._next = 0.0

    def __call__(self) -> None:
        """Look, if the last look is ``EVERY_S`` ago, or ``RETRY_S`` where that failed."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + EVERY_S
        try:
            self._compact()
        except StudioError as error:
            self._next = time.monotonic() + RETRY_S
            log.warning("the opinions log stays as it is: %s", error.message)
