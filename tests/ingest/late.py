"""Several machines as ingest sees them: their segments arrive late, under a clock that the test moves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from core.ingest import Ingest
from core.journal import Journal, read_segment, write_watermarks
from core.journal.lock import hold_lock
from core.pool import Pool

LOCAL = "w0"


class Machines:
    """Everything that all writers will have written, and a folder in which it arrives.

    Args:
        folder: for both, and the pool.
        calls: (writer, time, record), in order of time.
    """

    def __init__(self, folder: Path, calls: Iterable[tuple[str, float, bytes]]) -> None:
        self.folder = folder
        self.source, self.directory = folder / "source", folder / "journal"
        self.directory.mkdir(parents=True)
        self.now = 0.0
        self._ends: dict[str, list[tuple[float, int]]] = {}
        calls = list(calls)
        writers = {writer: Journal(self.source, writer=writer) for writer in sorted({one[0] for one in calls})}
        for writer, at, payload in calls:
            position = writers[writer].append(payload).result(20)
            end = next(read_segment(self.source, *position)).next_offset
            self._ends.setdefault(position[0], []).append((at, end))
        for journal in writers.values():
            journal.close()
        shutil.copy(self.source / "folder.id", self.directory)
        self.others = sorted(set(writers) - {LOCAL})
        self._locks = [hold_lock(self.directory / f"{writer}.lock") for writer in self.others]
        self.pool = Pool.open(folder / "pool.duckdb", clock=lambda: self.now)
        self.ingest = self._ingest()

    def _ingest(self) -> Ingest:
        return Ingest(self.directory, self.pool, wait=lambda _: False, clock=lambda: self.now)

    def restart(self) -> None:
        """A new process, as far as pool and ingest can tell."""
        self.pool.close()
        self.pool = Pool.open(self.folder / "pool.duckdb", clock=lambda: self.now)
        self.ingest = self._ingest()

    def at(self, now: float, visible: Mapping[str, float]) -> None:
        """It is ``now``, and of these writers all is visible up to these times; of the local one, all up to now."""
        self.now = now
        for segment, ends in self._ends.items():
            until = visible.get(segment.rpartition("-")[0], now)
            arrived = [end for at, end in ends if at <= until]
            target = self.directory / segment
            begin = target.stat().st_size if target.exists() else 0
            if arrived and arrived[-1] > begin:
                with target.open("ab") as file:
                    file.write((self.source / segment).read_bytes()[begin : arrived[-1]])
        write_watermarks(self.directory, visible)
        self.read()

    def read(self) -> None:
        """Take in what can be."""
        while self.ingest.run_once():
            pass
        assert self.ingest.last_error is None

    def close(self) -> None:
        """Close the pool and release the writers' names."""
        self.pool.close()
        for lock in self._locks:
            os.close(lock)

    def steps(self) -> dict[str, dict[str, Any]]:
        """What the pool says about each step."""
        return placed(self.pool)

    def in_time(self) -> dict[str, dict[str, Any]]:
        """The same of a pool on a single machine, which had everything in time."""
        pool = Pool.open(self.folder / "reference.duckdb", clock=lambda: self.now)
        ingest = Ingest(self.source, pool, wait=lambda _: False, clock=lambda: self.now)
        while ingest.run_once():
            pass
        reference = placed(pool)
        pool.close()
        return reference


def placed(pool: Pool) -> dict[str, dict[str, Any]]:
    """Steps by uid, without the time of their arrival; trajectories whether they are complete."""
    named: dict[str, dict[str, Any]] = {}
    for uid in pool.trajectories.uids():
        trajectory = pool.trajectories.get(uid)
        named[f"trajectory {uid}"] = {name: trajectory[name] for name in ("complete", "reward", "prompt_uid")}
        for step in trajectory["steps"]:
            assert step["step_uid"] not in named
            named[step["step_uid"]] = {
                name: value.tolist() if isinstance(value, np.ndarray) else value
                for name, value in step.items()
                if "ingested" not in name
            }
    return named
