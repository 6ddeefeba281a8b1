"""Rebuilds the pool from the journal and the opinions log: missing rows at a start, or a whole new file.

The journal is read first, then the opinions log is replayed, then pending feedback is applied: see
``core.pool.upkeep.recovery``. A new file replaces the old one only when it is complete; the old one is then renamed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.config import Settings
from core.durable import sync_folder
from core.errors import NoRoom, NotFound, PoolError, is_full
from core.ingest import Ingest
from core.journal import fetch_missing, journal_bytes, open_target
from core.pool import Pool
from core.pool.upkeep.recovery import read_counts

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total): stage ``journal`` counts bytes, ``opinions`` counts records."""
COUNTED = (
    "steps", "trajectories", "messages", "annotations", "actions", "feedback", "saved_views", "recipe_versions",
    "reward_policies", "dataset_versions", "dataset_steps", "batches", "step_values", "sessions", "policy_events",
)  # fmt: skip
"""Tables whose rows are counted before and after a rebuild."""


def restore_missing_opinions(pool: Pool, ingest: Ingest, trash: Path) -> None:
    """At startup: if the opinions log has records that the pool lacks, read the journal to its end and replay them."""
    if not pool.recovery.log_is_ahead:
        return
    while ingest.run_once():
        pass
    recovery = pool.recovery.recover(trash)
    log.warning(
        "the pool lacked %d records of the opinions log; they were replayed (%d rows without a target were left out)",
        recovery.n_records,
        recovery.n_without_target,
    )


def rebuild(
    settings: Settings, *, clock: Callable[[], float] = time.time, progress: Progress | None = None
) -> dict[str, Any]:
    """Rebuild the pool's file; the caller owns the data folder. Returns a report.

    The report is ``{kept_aside, before, after, replay, journal_bytes, log}``: the old file's new path (None if there
    was none), rows by table before (None if the old file can't be read) and after, and the result of replaying the log.

    Raises:
        NotFound: there is neither journal nor log.
        JournalError: the journal's target can't be read.
        PoolError: the new file can't be written; the old one is unchanged.
    """
    path = settings.pool_path
    target = open_target(settings.journal_target, settings.journal_target_options)
    if target is not None:
        fetch_missing(target, settings.journal_dir)
    n_bytes = journal_bytes(settings.journal_dir)
    if not n_bytes and not settings.opinions_dir.exists():
        raise NotFound(f"{settings.data_dir} has neither a journal nor an opinions log.", field="data_dir")
    before = read_counts(path, COUNTED) if path.exists() else None
    partial = path.with_name(path.name + ".rebuilding")
    _remove(partial)
    try:
        with closing(
            Pool.open(partial, memory=settings.pool_memory, threads=settings.pool_threads, clock=clock)
        ) as pool:
            replay, generation = _fill(pool, settings, clock, n_bytes, progress)
            after = pool.file.table_counts(COUNTED)
            pool.file.settle()
        aside = _keep_aside(path, clock)
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        refused = NoRoom if is_full(error) else PoolError
        raise refused(
            f"The pool can't be rebuilt: {error}", field="data_dir", hint="Check the free space of its disk."
        ) from error
    finally:
        _remove(partial)
    return {
        "kept_aside": None if aside is None else str(aside),
        "before": before,
        "after": after,
        "replay": {**asdict(replay), "n_rows": dict(replay.n_rows)},
        "journal_bytes": n_bytes,
        "log": generation,
    }


def renew_log(settings: Settings) -> None:
    """Write a new opinions log with the pool's contents; the caller owns the data folder."""
    with closing(Pool.open(settings.pool_path, memory=settings.pool_memory, threads=settings.pool_threads)) as pool:
        pool.recovery.renew_log(settings.opinions_dir)


def _fill(pool: Pool, settings: Settings, clock: Callable[[], float], n_bytes: int, progress: Progress | None) -> Any:
    generation = pool.recovery.begin_rebuild(settings.opinions_dir)
    ingest = Ingest(settings.journal_dir, pool, wait=lambda _: False, clock=clock, tokenizers=settings.tokenizers)
    while ingest.run_once():
        if progress is not None:
            progress("journal", sum(pool.journal.positions().values()), n_bytes)

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress("opinions", done, total)

    return pool.recovery.finish_rebuild(settings.opinions_dir, generation, progress=report), generation


def _keep_aside(path: Path, clock: Callable[[], float]) -> Path | None:
    """Rename the old file and its write-ahead log to an unused name; the file's new path, None if there was no file.

    The log of a file that was deleted must go too: it fits no other file, which could not be opened beside it.
    """
    wal = Path(f"{path}.wal")
    old = [file for file in (path, wal) if file.exists()]
    if not old:
        return None
    when = datetime.fromtimestamp(clock(), UTC).strftime("%Y%m%dT%H%M%S")
    aside = path.with_name(f"{path.name}.before-{when}")
    number = 1
    while aside.exists() or Path(f"{aside}.wal").exists():
        number += 1
        aside = path.with_name(f"{path.name}.before-{when}-{number}")
    for file in old:
        file.replace(aside if file == path else Path(f"{aside}.wal"))
    return aside if path in old else None


def _remove(path: Path) -> None:
    for each in (path, Path(f"{path}.wal")):
        each.unlink(missing_ok=True)
