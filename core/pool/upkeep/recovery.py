"""``pool.recovery``: replays the opinions log into the pool's file, at each start, after a crash, and on a rebuild.

The file stores the number of the last log record that it contains. At the start, records after it, which were durable
but not committed, are replayed. A file without a position, or with one that the log does not have, begins a new log
with a snapshot of its content.

Opinions refer to facts, and feedback in the journal shares an order with the opinions in the log. So the replay waits
until the journal is read to its end, feedback from the journal waits for the replay, and feedback that the log contains
is not stored twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from core.errors import PoolDamaged
from core.journal import SUFFIX
from core.pool.state.derive import refresh
from core.pool.state.feedback_writer import digest_of
from core.pool.store.damage import REPAIR_HINT, check_length, opening_failed, read_all
from core.pool.store.database import Cursor, Database, registered, rows
from core.pool.store.file import PoolFile
from core.pool.store.writer import Writer
from core.pool.upkeep import opinionlog
from core.pool.upkeep.compaction import compact, needs_compaction, note_position, remove_interrupted_compaction
from core.pool.upkeep.deletion import DELETING, Deletions, forget
from core.pool.upkeep.loggedtables import insert_logged_rows, snapshot
from core.pool.upkeep.opinionlog import Entry, OpinionLog
from core.pool.upkeep.trashedruns import read_note, reinsert_trashed_run

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Replay:
    """The counts of a replay of the log.

    Attributes:
        n_records: records put back.
        n_rows: rows by table.
        n_without_target: rows that were left out, since the step or trajectory that they are about is not there.
        n_missing: records that the log should hold and does not.
    """

    n_records: int = 0
    n_rows: Counter[str] = field(default_factory=Counter)
    n_without_target: int = 0
    n_missing: int = 0


class Recovery:
    """``pool.recovery``: opens the opinions log, and replays it."""

    def __init__(self, database: Database, writer: Writer, file: PoolFile) -> None:
        self._db, self._writer, self._file = database, writer, file
        self._log: OpinionLog | None = None
        self._after: tuple[str, int] = ("", 0)
        self._holding = False
        self._forgotten: Deletions | None = None

    @property
    def log_is_ahead(self) -> bool:
        """The log holds more than the file: read the journal to its end, then ``recover``."""
        return self._holding

    def keep_log(self, directory: Path) -> None:
        """Continue the opinions log in this folder, or begin one. OpinionsError when it can't be written."""
        with self._db.read() as cursor:
            positions = cursor.execute("SELECT generation, mark, n FROM opinions_position").fetchall()
            held = cursor.execute("SELECT count(*) FROM held_feedback").fetchall()[0][0]
        if positions:
            remove_interrupted_compaction(directory, positions[0][0])
        if not positions or positions[0][0] not in opinionlog.generations(directory):
            if positions:
                log.warning("the opinions log in %s is gone: a new one begins with what the pool holds", directory)
            self._begin(directory)
        else:
            self._take_up(directory, *positions[0])
        if held and not self._holding:
            self._log, self._db.log, self._after, self._holding = self._db.log, None, ("", 0), True
            self._db.logged = False

    def _take_up(self, directory: Path, generation: str, mark: str, n: int) -> None:
        opened = OpinionLog(directory, generation, n, self._db.clock)
        try:
            tail = [(entry.n, entry.kind, entry.voids) for entry in opinionlog.read_tail(directory, mark)]
        except BaseException:
            opened.close()
            raise
        if n not in {number for number, _, _ in tail}:
            log.warning("the opinions log in %s lost its end: a new one begins with what the pool holds", directory)
            opened.close()
            self._begin(directory)
            return
        opened.n = max(number for number, _, _ in tail)
        voided = {voids for _, kind, voids in tail if kind == "void"}
        if any(number > n and kind == "change" and number not in voided for number, kind, _ in tail):
            self._log, self._after, self._holding = opened, (mark, n), True
            self._db.logged = False  # a replay must not delete the file's position
            return
        self._db.log, self._db.logged = opened, True

    def _begin(self, directory: Path) -> None:
        """A new log, which holds all that the file holds of opinions."""
        opened = OpinionLog(directory, opinionlog.new_generation(directory), 0, self._db.clock)
        try:
            with self._db.lock:
                with self._db.read() as cursor:
                    for part in snapshot(cursor):
                        opened.append("snapshot", [part])
                with self._db.write() as cursor:
                    note_position(cursor, opened)
                self._db.log, self._db.logged = opened, True
        except BaseException:
            opened.close()
            raise

    def renew_log(self, directory: Path) -> None:
        """Begin a new log in place of one that is damaged; the old one stays where it is."""
        with self._db.lock:
            before, self._db.log = self._db.log, None
            if before is not None:
                before.close()
            self._begin(directory)

    def compact_log(self) -> int | None:
        """Compact the log if more than half of it is superseded; returns the bytes saved, or None.

        OpinionsError when the new one can't be written: the old one stays in use.
        """
        # A backup may be copying it: another time will do.
        if not self._file.lock.acquire(blocking=False):
            return None
        try:
            return compact(self._db) if needs_compaction(self._db) else None
        finally:
            self._file.lock.release()

    def recover(self, trash: Path) -> Replay:
        """Replay the log's records that the file lacks, once the journal is read to its end."""
        replay = Replay()
        kept = self._log
        if not self._holding or kept is None:
            return replay
        mark, n = self._after
        entries = list(opinionlog.read_tail(kept.directory, mark)) if mark else []
        voided = {entry.voids for entry in entries if entry.kind == "void"}
        with self._writer.writing() as cursor:
            for entry in entries:
                if entry.n > n and entry.kind == "change" and entry.n not in voided:
                    _apply(cursor, entry, replay, trash, frozenset())
            if replay.n_records:
                refresh(cursor, None)
                note_position(cursor, kept)
        self._finish(kept)
        return replay

    def begin_rebuild(self, directory: Path) -> str | None:
        """In a new file, before the journal is read: skip deleted items, and let feedback wait for the log.

        Returns the log's name, None when there is none.
        """
        generation = opinionlog.newest_whole(directory)
        self._holding = True
        if generation is not None:
            self._forgotten = _deletions(opinionlog.read_generation(directory, generation))
        return generation

    @property
    def forgets_any(self) -> bool:
        """Whether ``forgets`` can return True."""
        return self._forgotten is not None

    def forgets(self, kind: str, uid: str, segment: str, offset: int) -> bool:
        """Whether a record of the journal is about something that was deleted after it was read."""
        return self._forgotten is not None and self._forgotten.forgets(kind, uid, segment, offset)

    def finish_rebuild(
        self, directory: Path, generation: str | None, *, progress: Callable[[int, int], None] | None = None
    ) -> Replay:
        """After the journal was read: replay the whole log, then continue it.

        ``progress`` is called with (records put back, in all).
        """
        replay = Replay()
        self._forgotten = None
        if generation is None:
            with self._writer.writing() as cursor:
                refresh(cursor, None)
            self._begin(directory)
            kept = self._db.log
            assert kept is not None
            self._db.log = None
            self._finish(kept)
            return replay
        voided, restored, last, n_entries = set(), set(), 0, 0
        for entry in opinionlog.read_generation(directory, generation):
            n_entries, last = n_entries + 1, max(last, entry.n)
            if entry.kind == "void":
                voided.add(entry.voids)
            elif any(name == "restored_runs" for name, _ in entry.names):
                restored |= {uid for name, table in entry.parts() if name == "restored_runs"
                             for uid in table["run_uid"].to_pylist()}  # fmt: skip
        replay.n_missing = last - n_entries
        kept = OpinionLog(directory, generation, last, self._db.clock)
        try:
            for done, entry in enumerate(opinionlog.read_generation(directory, generation), 1):
                if progress is not None:
                    progress(done, n_entries)
                if entry.kind in ("change", "snapshot") and entry.n not in voided:
                    with self._writer.writing() as cursor:
                        _apply(cursor, entry, replay, None, frozenset(restored))
            with self._writer.writing() as cursor:
                refresh(cursor, None)
                note_position(cursor, kept)
        except BaseException:
            kept.close()
            raise
        self._finish(kept)
        return replay

    def _finish(self, kept: OpinionLog) -> None:
        """Continue the log, and store the feedback that waited, without the part that the log already contained."""
        self._holding, self._log = False, None
        self._writer.read_next_ids()
        self._db.log, self._db.logged = kept, True
        self._writer.feedback.forget()
        with self._writer.writing() as cursor:
            held = [orjson.loads(body) for (body,) in cursor.execute("SELECT body FROM held_feedback").fetchall()]
            fresh = _not_taken(cursor, held)
            due = self._writer.feedback.awaited_targets(cursor)
            touched = self._writer.feedback.take(cursor, fresh, due, take_id=self._writer.take, now=self._db.clock())
            cursor.execute("DELETE FROM held_feedback")
            refresh(cursor, touched)

    def hold(self, cursor: Cursor, feedback: Iterable[Mapping[str, Any]]) -> None:
        """Keep feedback aside until ``recover``."""
        bodies = pa.table({"body": pa.array([orjson.dumps(item).decode() for item in feedback], pa.string())})
        if len(bodies):
            with registered(cursor, new_held=bodies):
                cursor.execute("INSERT INTO held_feedback SELECT body FROM new_held")


def _apply(cursor: Cursor, entry: Entry, replay: Replay, trash: Path | None, skipped: frozenset[str]) -> None:
    """Replay one record. ``skipped`` are deletions that were restored later: they are not run."""
    parts = entry.parts()
    for name, table in parts:
        left_out = insert_logged_rows(cursor, name, table)
        replay.n_rows[name] += len(table) - left_out
        replay.n_without_target += left_out
    replay.n_records += 1
    if entry.kind != "change":
        return
    for name, table in parts:
        if name == "retention_runs":
            for run_uid in table["run_uid"].to_pylist():
                if run_uid is not None and run_uid not in skipped:
                    forget(cursor, run_uid)
        elif name == "restored_runs" and trash is not None:
            for run_uid in table["run_uid"].to_pylist():
                if len(parts) > 1 or read_note(trash / run_uid) is None:
                    raise PoolDamaged(
                        f"The pool's file is older than the restoration of run {run_uid!r}.",
                        field="data_dir",
                        hint=REPAIR_HINT,
                    )
                reinsert_trashed_run(cursor, trash / run_uid)


def _deletions(entries: Iterable[Entry]) -> Deletions:
    """The deletions in the log."""
    deletions = Deletions()
    for entry in entries:
        if any(name in DELETING for name, _ in entry.names):
            for name, table in entry.parts():
                deletions.add(name, table.to_pylist())
    return deletions


def _not_taken(cursor: Cursor, held: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Feedback that the log did not contain: the journal has every delivery, repeated ones too."""
    if not held:
        return []
    taken = Counter(
        (row["feedback_uid"], row["digest"])
        for row in rows(cursor, "SELECT feedback_uid, replace(content_hash::VARCHAR, '-', '') AS digest FROM feedback")
    )
    fresh = []
    for item in held:
        key = (item["feedback_uid"], digest_of(item))
        if taken[key]:
            taken[key] -= 1
        else:
            fresh.append(item)
    return fresh


def read_counts(path: Path, tables: Sequence[str]) -> dict[str, int] | None:
    """Rows by table of a file that is not opened for writing; None when it can't be read."""
    try:
        with closing(duckdb.connect(str(path), read_only=True)) as connection:
            return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0] for name in tables}
    except (duckdb.Error, OSError, RuntimeError, ValueError, MemoryError):
        return None


def read_place(path: Path) -> tuple[str, int] | None:
    """The log and the last record that a closed file contains; None if it can't be read."""
    try:
        with closing(duckdb.connect(str(path), read_only=True)) as connection:
            positions = connection.execute("SELECT generation, n FROM opinions_position").fetchall()
    except (duckdb.Error, OSError, RuntimeError, ValueError, MemoryError):
        return None
    return positions[0] if positions else None


def find_read_error(path: Path) -> str | None:
    """Read every value of a closed file; returns the error, None when all of it can be read."""
    try:
        settled = not Path(f"{path}.wal").exists()
        with closing(duckdb.connect(str(path), read_only=True)) as connection:
            if settled:
                check_length(connection, str(path))
            read_all(connection)
    except PoolDamaged as error:
        return error.message
    except (duckdb.Error, OSError, RuntimeError, ValueError, MemoryError) as error:
        return opening_failed(str(path), error).message
    return None


def check_recoverable(path: Path, journal_dir: Path, opinions: Path) -> None:
    """Raises PoolDamaged when the file is missing though there is a journal or a log."""
    if path.exists() and path.stat().st_size:
        return
    n_bytes = sum(one.stat().st_size for folder in (journal_dir, opinions) for one in folder.glob("*" + SUFFIX))
    if n_bytes:
        raise PoolDamaged(
            f"The pool's file {path} is gone, but journal and opinions log hold {n_bytes} bytes.",
            field="data_dir",
            hint=REPAIR_HINT,
        )
