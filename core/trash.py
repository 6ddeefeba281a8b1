"""The trash of retention: keeps deleted steps and journal segments for some days, restores them, or deletes them.

A segment of which the pool has no step is thinned: records of deleted data are removed, all others keep their offsets.
The pool can therefore be rebuilt from the journal and the opinions log without the trash.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.durable import sync_folder
from core.errors import InvalidInput, NoRoom, NotFound, PoolError, is_full
from core.journal import SUFFIX, Record, thin
from core.pool import Pool
from core.pool.upkeep.deletion import Deletions
from core.pool.upkeep.trashedruns import SEGMENTS, Uptime, read_note, uptime
from core.records import parse

log = logging.getLogger(__name__)

SWEEP_EVERY_S = 60.0
SETTLED_S = 600.0
"""For this time after a machine's start, its clock may be wrong, seconds."""
_RUN = re.compile(r"run-[0-9a-f]{32}")


def prune_journal(pool: Pool, journal_dir: Path, trash: Path | None = None) -> dict[str, Any]:
    """Remove deleted records from segments that the pool has read to the end and of which it has no step.

    The newest segment of each writer and damaged segments are not changed. The original segments are moved to
    ``trash``, if given. Returns ``{segments: [names], n_bytes}``; ``n_bytes`` is the reduction of the journal's size.

    Raises:
        PoolError: a segment can't be written; it is unchanged.
    """
    with pool.file.lock:
        return _prune(pool, journal_dir, trash)


def _prune(pool: Pool, journal_dir: Path, trash: Path | None) -> dict[str, Any]:
    positions = pool.journal.positions()
    used = set(pool.integrity.journal_segments())
    by_writer: dict[str, list[Path]] = {}
    for path in sorted(journal_dir.glob("*" + SUFFIX)):
        by_writer.setdefault(path.name.rpartition("-")[0], []).append(path)
    thinned, n_bytes = [], 0
    deletions = pool.retention.deletions()
    for paths in by_writer.values():
        for path in sorted(paths, key=lambda path: int(path.stem.rpartition("-")[2]))[:-1]:
            size = path.stat().st_size
            if path.name in used or positions.get(path.name, 0) < size:
                continue
            try:
                copy = thin(path, lambda record: is_deleted(record, deletions))
                if copy is None:
                    continue
                n_bytes += size - copy.stat().st_size
                _put_in_place(copy, path, trash)
            except OSError as error:
                refused = NoRoom if is_full(error) else PoolError
                raise refused(
                    f"{path} can't be thinned: {error}", field="data_dir", hint="Free disk space. It is unchanged."
                ) from error
            thinned.append(path.name)
    return {"segments": thinned, "n_bytes": n_bytes}


def is_deleted(record: Record, deletions: Deletions) -> bool:
    """Whether everything that a record refers to was deleted after the record was read. Unreadable records are kept."""

    def gone(kind: str, uid: object) -> bool:
        return isinstance(uid, str) and deletions.forgets(kind, uid, record.segment, record.offset)

    try:
        fields = parse(record.payload)
        kind = fields["kind"]
        if kind == "call":
            return gone("step", fields["step_uid"])
        if kind == "steps":
            return all(gone("step", step["step_uid"]) for step in fields["steps"])
        if kind == "feedback":
            return all(gone("feedback", item["feedback_uid"]) for item in fields["feedback"])
        return kind in ("register", "complete") and gone("trajectory", fields["trajectory_uid"])
    except (InvalidInput, KeyError, TypeError):
        return False


def _put_in_place(copy: Path, path: Path, trash: Path | None) -> None:
    if trash is not None:
        trash.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = trash / path.name
        kept.unlink(missing_ok=True)
        os.link(path, kept)
        sync_folder(trash)
    copy.replace(path)
    sync_folder(path.parent)


def list_trash(trash_dir: Path, *, days: float) -> list[dict[str, Any]]:
    """Runs that can be restored, newest first: ``{run_uid, at, until, author, rule, deleted, n_segments, n_bytes}``."""
    notes = []
    for folder in trash_dir.glob("run-*") if trash_dir.is_dir() else ():
        note = read_note(folder)
        if note is not None:
            sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
            segments = sum(1 for _ in (folder / SEGMENTS).glob("*" + SUFFIX))
            more = {"until": note["at"] + days * 86400, "n_segments": segments, "n_bytes": sum(sizes)}
            notes.append({**note, **more})
    return sorted(notes, key=lambda note: note["at"], reverse=True)


def empty_trash(trash_dir: Path) -> list[str]:
    """Delete everything in the trash; returns the runs."""
    return _delete(trash_dir, lambda note: note is not None)


def _delete(trash_dir: Path, over: Callable[[dict[str, Any] | None], bool]) -> list[str]:
    gone = []
    for folder in trash_dir.glob("run-*") if trash_dir.is_dir() else ():
        if over(read_note(folder)):
            shutil.rmtree(folder, ignore_errors=True)
            gone.append(folder.name)
    return sorted(gone)


class TrashSweep:
    """Deletes expired runs from the trash. Call it often; it checks at intervals.

    A run has expired if its time is over by the wall clock and, unless the machine was restarted since, also by the
    machine's uptime. Setting the clock forward therefore deletes nothing. After a restart, it waits for ``SETTLED_S``.

    Args:
        days: how long a run is kept.
        clock: UTC seconds.
        up: see ``core.pool.upkeep.trashedruns.uptime``.
    """

    def __init__(
        self, trash_dir: Path, *, days: float, clock: Callable[[], float], up: Callable[[], Uptime] = uptime
    ) -> None:
        self._trash_dir = trash_dir
        self._kept_s = days * 86400
        self._clock = clock
        self._up = up
        self._next = 0.0
        # An interrupted run looks like one in progress; at the start there is none in progress.
        self._sweep(unfinished=True)

    def __call__(self) -> None:
        """Check for expired runs, if the last check was ``SWEEP_EVERY_S`` ago."""
        if time.monotonic() >= self._next:
            self._sweep(unfinished=False)

    def _sweep(self, *, unfinished: bool) -> None:
        self._next = time.monotonic() + SWEEP_EVERY_S
        for run in _delete(self._trash_dir, lambda note: unfinished if note is None else self._is_over(note)):
            log.warning("%s was deleted from the trash after %g days", run, self._kept_s / 86400)

    def _is_over(self, note: dict[str, Any]) -> bool:
        boot, up_s = self._up()
        then = note.get("up") or [None, 0.0]
        lain_s = self._clock() - note["at"]
        if then[0] == boot:
            lain_s = min(lain_s, up_s - then[1])
        elif up_s < SETTLED_S:
            return False
        return bool(lain_s >= self._kept_s)


def restore_run(pool: Pool, journal_dir: Path, trash_dir: Path, run_uid: str, *, author: str) -> dict[str, Any]:
    """Restore a run's rows and journal segments; returns ``{run_uid, n_trajectories, segments}``.

    Raises NotFound if it is not in the trash, Conflict if it is already restored.
    """
    if not _RUN.fullmatch(run_uid) or read_note(trash_dir / run_uid) is None:
        raise NotFound(f"The trash holds no run {run_uid!r}.", field="run_uid", hint="Its time may be over.")
    with pool.file.lock:
        # Segments first: segments without steps do no harm, but steps without segments could not be rebuilt.
        segments = []
        for path in sorted((trash_dir / run_uid / SEGMENTS).glob("*" + SUFFIX)):
            target = journal_dir / path.name
            # A later run may have moved a thinned copy to its trash; the larger copy of a segment is more complete.
            if not target.exists() or target.stat().st_size < path.stat().st_size:
                path.replace(target)
                segments.append(path.name)
        sync_folder(journal_dir)
        n = pool.retention.restore(run_uid, author=author)
        shutil.rmtree(trash_dir / run_uid, ignore_errors=True)
        return {"run_uid": run_uid, "n_trajectories": n, "segments": segments}
