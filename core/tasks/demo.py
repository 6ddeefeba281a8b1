"""Runs the live demo: several rollouts of every demo task, in parallel, against a running studio.

The policy is scripted (see ``core.tasks.demo_policy``); agent, tools and checks are real.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from core.client import StudioClient
from core.errors import InvalidInput, NotFound, StudioError
from core.tasks.demo_policy import MAX_TURNS, MODEL
from core.tasks.demo_tasks import demo_tasks
from core.tasks.rollout import Rollout, run_rollout
from core.tasks.task import Task

_CORE = Path(__file__).resolve().parents[1]
# In a wheel the demo data is inside core, in a checkout beside it (setup.py).
DEMO_DATA = _CORE / "demo_data" if (_CORE / "demo_data").is_dir() else _CORE.parent / "demo_data"


def demo_script_path() -> Path:
    """The script of the demo's policy, for the scripted engine.

    Raises:
        NotFound: this installation has no ``demo_data/``.
    """
    path = DEMO_DATA / "policy.json"
    if not path.is_file():
        raise NotFound("the demo's policy script is missing", field="demo_data", hint="install claw-studio again")
    return path


class DemoRun:
    """A run of the demo in background threads.

    Args:
        base_url: root of the studio, ``http://host:port``.
        n_rollouts: attempts per task.
        seed: with the rollout's number, selects the scripted behaviour of each rollout.
        api_key: the admin key, if the studio requires one.
        tls: TLS context for HTTPS.
        tasks: tasks to attempt; None means all demo tasks.
        name_trajectory: returns the trajectory's uid for a task and a number; if None, the studio generates uids.
        on_rollout: called after each rollout, in the thread that ran it.
    """

    def __init__(
        self,
        base_url: str,
        *,
        n_rollouts: int = 4,
        seed: int = 0,
        max_parallel: int = 4,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        model: str = MODEL,
        max_turns: int = MAX_TURNS,
        max_tokens: int | None = None,
        tasks: Sequence[Task] | None = None,
        name_trajectory: Callable[[Task, int], str] | None = None,
        on_rollout: Callable[[Rollout], None] | None = None,
    ) -> None:
        if n_rollouts < 1:
            raise InvalidInput(f"n_rollouts is {n_rollouts}", field="n_rollouts", hint="at least 1")
        self._studio = StudioClient(base_url, api_key=api_key, tls=tls)
        self._jobs = [(task, k) for task in tasks or demo_tasks() for k in range(n_rollouts)]
        self._seed = seed
        self._max_parallel = max_parallel
        self._settings: dict[str, Any] = {"model": model, "max_turns": max_turns, "max_tokens": max_tokens, "tls": tls}
        self._name_trajectory = name_trajectory
        self._on_rollout = on_rollout
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._results: list[Rollout] = []
        self._error: str | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the run in the background.

        Raises:
            InvalidInput: it was started before.
        """
        if self._thread is not None:
            raise InvalidInput("this demo run was started before", hint="create a new DemoRun")
        self._thread = threading.Thread(target=self._run, name="demo-run", daemon=True)
        self._thread.start()

    def status(self) -> dict[str, Any]:
        """``{running, done, total, error, mean_reward}``; ``error`` is the first failure, or None."""
        with self._lock:
            results, error = list(self._results), self._error
        values = [r.score.value for r in results if r.score is not None and r.score.value is not None]
        return {
            "running": self._thread is not None and self._thread.is_alive(),
            "done": len(results),
            "total": len(self._jobs),
            "error": error,
            "mean_reward": sum(values) / len(values) if values else None,
        }

    def results(self) -> list[Rollout]:
        """The finished rollouts, in the order in which they ended."""
        with self._lock:
            return list(self._results)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; returns False if it is still running after ``timeout_s``."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            return not self._thread.is_alive()
        return True

    def stop(self, timeout_s: float = 10.0) -> None:
        """Start no further turns, and wait for those in progress."""
        self._stopping.set()
        self.join(timeout_s)

    def _run(self) -> None:
        with ThreadPoolExecutor(self._max_parallel, thread_name_prefix="demo-rollout") as pool:
            futures: list[Future[None]] = [pool.submit(self._run_one, task, k) for task, k in self._jobs]
            for future in futures:
                error = future.exception()
                if error is not None:
                    self._fail(f"{type(error).__name__}: {error}")

    def _run_one(self, task: Task, k: int) -> None:
        if self._stopping.is_set():
            return
        try:
            rollout = run_rollout(
                self._studio,
                task,
                seed=self._seed + k,
                trajectory_uid=None if self._name_trajectory is None else self._name_trajectory(task, k),
                should_stop=self._stopping.is_set,
                **self._settings,
            )
        except StudioError as error:
            self._fail(error.message)
            self._stopping.set()  # the studio does not answer or refuses: the other rollouts would fail too
            return
        if rollout.error is not None:
            self._fail(rollout.error)
        with self._lock:
            self._results.append(rollout)
        if self._on_rollout is not None:
            self._on_rollout(rollout)

    def _fail(self, message: str) -> None:
        with self._lock:
            self._error = self._error or message
