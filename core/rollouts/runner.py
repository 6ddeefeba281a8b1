"""Works through a run: a queue of attempts, several at a time, from where an earlier process left it."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Collection
from pathlib import Path

from core.client import Unreachable
from core.errors import InvalidInput, StudioError
from core.harnesses import Harness
from core.rollouts.attempt import Attempt, Outcome
from core.rollouts.attempting import Place, complete, ended, make_attempt, new_attempt
from core.rollouts.runs import Run
from core.sandbox.box import sweep_folders

log = logging.getLogger(__name__)

RETRIED: tuple[Outcome, ...] = ("lost", "crashed", "refused")
"""Outcomes without a score, whose attempts can be made again."""
LOST: tuple[Outcome, ...] = ("lost",)
SHARE_OF_MEMORY = 0.7
WORKERS_PER_CPU = 8
"""Agents wait for the model most of the time; above this, they wait for processors."""


def default_workers(harness: Harness, n_slots: int) -> int:
    """How many attempts to run at a time: as many as fit into the memory that is free now, by the measured cost."""
    most = WORKERS_PER_CPU * (os.cpu_count() or 1)
    available = _available_bytes()
    if available is not None:
        most = min(most, int(SHARE_OF_MEMORY * available / (harness.memory_mb << 20)))
    return max(1, min(most, n_slots))


def waiting_slots(run: Run, retry: Collection[Outcome] = LOST) -> list[tuple[str, int, int]]:
    """``(task_id, number, retry)`` of attempts to make: those never begun, and those that ended with such an outcome.

    The first attempts of all tasks come first, so that early results cover every task.

    Raises:
        InvalidInput: an outcome has a score, so its attempts are not made again.
    """
    wrong = sorted(set(retry) - set(RETRIED))
    if wrong:
        raise InvalidInput(f"attempts that {wrong[0]} are not made again", field="retry", hint=", ".join(RETRIED))
    newest = run.newest()
    slots = []
    for number in range(run.settings.attempts):
        for task_id in run.settings.task_ids:
            last = newest.get((task_id, number))
            if last is None:
                slots.append((task_id, number, 0))
            elif last.state == "done" and last.outcome in retry:
                slots.append((task_id, number, last.retry + 1))
    return slots


class Runner:
    """Works through one run with a number of threads, which live until the end: a sandbox ends with its thread.

    Attributes:
        error: why the run stopped before its end, or None.
    """

    def __init__(self, place: Place, *, workers: int, retry: Collection[Outcome] = LOST) -> None:
        self.error: str | None = None
        self._place = place
        self._workers = workers
        self._retry = retry
        self._queue: deque[tuple[str, int, int]] = deque()
        self._failed = threading.Event()

    def run(self) -> None:
        """Finish what an earlier process left, then make all attempts that are missing."""
        sweep_folders()
        self._recover()
        self._queue.extend(waiting_slots(self._place.run, self._retry))
        n_threads = min(self._workers, len(self._queue))
        threads = [threading.Thread(target=self._work, name=f"attempt-{n}") for n in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def stopping(self) -> bool:
        """Whether no further attempt is begun."""
        return self._failed.is_set() or self._place.should_stop()

    def _recover(self) -> None:
        """Attempts that are half-way were interrupted: they are lost. Results that were stored are reported."""
        for attempt in self._place.run.attempts():
            if attempt.state == "done":
                continue
            known = attempt
            if attempt.state != "reporting":
                reason = "the supervisor was ended in the middle of this attempt"
                known = self._place.write(ended(self._place, attempt, "lost", reason))
            _revoke(self._place, known)
            complete(self._place, known)

    def _work(self) -> None:
        while not self.stopping:
            try:
                slot = self._queue.popleft()
            except IndexError:
                return
            try:
                make_attempt(self._place, new_attempt(self._place, *slot))
            except Unreachable as error:
                self._fail(f"the studio does not answer: {error.message}")
            except StudioError as error:
                self._fail(error.message)
            except OSError as error:
                self._fail(f"a result could not be stored: {error}")
            except Exception as error:  # one attempt must not end the threads of the others in silence
                log.exception("an attempt failed")
                self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, message: str) -> None:
        self.error = self.error or message
        self._failed.set()


def _revoke(place: Place, attempt: Attempt) -> None:
    """The key of an interrupted attempt must not be used any more; one without a session has none."""
    try:
        place.studio.revoke(attempt.trajectory_uid)
    except StudioError as error:
        if error.http_status != 404:
            raise


def _available_bytes() -> int | None:
    """Memory that programs can get without swapping; None if the system does not say it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kib is None else int(kib) * 1024
