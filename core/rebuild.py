"""Rebuilds the pool from the journal and the opinions log: missing rows at a start, or a whole new file.

The journal is read first, then the log is put back, then the feedback that waited: see ``core.pool.upkeep.recovery``. A
new file takes the place of the old one only when it is whole; the old one is kept aside under another name.
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
from core.journal import journal_bytes
from core.pool import Pool
from core.pool.upkeep.recovery import read_counts

log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, in all): ``journal`` counts bytes, ``opinions`` records."""
COUNTED = (
    "steps", "trajectories", "messages", "annotations", "actions", "feedback", "saved_views", "recipe_versions",
    "reward_policies", "dataset_versions", "dataset_steps", "batches", "step_values", "sessions", "policy_events",
)  # fmt: skip
"""Tables whose rows a rebuild compares."""


def put_back(pool: Pool, ingest: Ingest, trash: Path) -> None:
    """At a start: where the log holds more than the pool, read the journal to its end and put that back."""
    if not pool.recovery.behind:
        return
    while ingest.run_once():
        pass
    recovery = pool.recovery.recover(trash)
    log.warning(
        "the pool missed %d records of the opinions log; they are back (%d rows about what is not there left out)",
        recovery.n_records,
        recovery.n_without_target,
    )


def rebuild(
    settings: Settings, *, clock: Callable[[], float] = time.time, progress: Progress | None = None
) -> dict[str, Any]:
    """Make the pool's file anew; the caller owns the data folder. Returns a report.

    ``{kept_aside, before, after, replay, journal_bytes, log}``: rows by table before (None where the old file can't be
    read) and after, what putting the log back came to, and where the old file lies now (None when there was none).

    Raises:
        NotFound: there is neither journal nor log.
        PoolError: the new file can't be written; the old one stands as it was.
    """
    path = settings.pool_path
    n_bytes = journal_bytes(settings.journal_dir)
    if not n_bytes and not settings.opinions_dir.exists():
        raise NotFound(f"{settings.data_dir} holds neither a journal nor an opinions log.", field="data_dir")
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
        raise refused(f"The pool can't be made anew: {error}", field="data_dir", hint="Has its disk room?") from error
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
    """Begin a new opinions log with all that the pool holds; the caller owns the data folder."""
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
    """Move the old file and its write-ahead log away, under a name that is free."""
    if not path.exists():
        return None
    when = datetime.fromtimestamp(clock(), UTC).strftime("%Y%m%dT%H%M%S")
    aside = path.with_name(f"{path.name}.before-{when}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.before-{when}-{number}")
    path.replace(aside)
    wal = Path(f"{path}.wal")
    if wal.exists():
        wal.replace(Path(f"{aside}.wal"))
    return aside


def _remove(path: Path) -> None:
    for each in (path, Path(f"{path}.wal")):
        each.unlink(missing_ok=True)
