"""Supervisor processes of runs: each works through one run, and ends when this process closes its input or ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from core.config import Settings
from core.errors import Conflict

STOP_S = 30.0
MESSAGES = "supervisor.log"
MAX_MESSAGE = 2000


class Supervisors:
    """The supervisors of one kind of run. Thread-safe.

    Args:
        module: the program, run with ``--run``, ``--studio`` and ``--data``.
        settings: of the service.
        base_url: returns the studio's root URL.
    """

    def __init__(self, module: str, settings: Settings, base_url: Callable[[], str]) -> None:
        self._module, self._settings, self._base_url = module, settings, base_url
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def start(self, run: str, folder: Path, options: Sequence[str] = ()) -> None:
        """Start the supervisor of a run; its messages go to a file in the run's folder.

        Raises:
            Conflict: the run has one.
        """
        command = [sys.executable, "-m", self._module, "--run", run, "--studio", self._base_url()]
        command += ["--data", str(self._settings.data_dir.absolute()), *options]
        with self._lock, (folder / MESSAGES).open("wb") as messages:
            old = self._processes.get(run)
            if old is not None and old.poll() is None:
                raise Conflict(f"the run {run} is in progress", field="run")
            self._processes[run] = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=messages,
                env=self._environment(),
                start_new_session=True,  # Ctrl-C in the terminal goes to this process, which ends the run in order
            )

    def alive(self, run: str) -> bool:
        """Whether the run has a supervisor that has not ended."""
        process = self._of(run)
        return process is not None and process.poll() is None

    def ask_to_end(self, run: str) -> bool:
        """Close the input of a run's supervisor and return at once; False if there is none."""
        process = self._of(run)
        if process is None or process.poll() is not None:
            return False
        _close_input(process)
        return True

    def end(self, run: str, timeout_s: float = STOP_S) -> bool:
        """End a run's supervisor, by force after ``timeout_s`` seconds; False if there is none."""
        if not self.ask_to_end(run):
            return False
        process = self._of(run)
        assert process is not None
        _wait(process, timeout_s)
        return True

    def error(self, run: str, folder: Path) -> str | None:
        """Why the newest supervisor of a run stopped early; None if it did not."""
        process = self._of(run)
        code = None if process is None else process.poll()
        if code == 0:
            return None
        try:
            text = (folder / MESSAGES).read_text(errors="replace").strip()
        except FileNotFoundError:
            text = ""
        last = text.splitlines()[-1][:MAX_MESSAGE] if text else None
        if last is None and code is not None:
            return f"the supervisor ended with code {code}"
        return last

    def close(self) -> None:
        """End all supervisors; their runs can be resumed."""
        with self._lock:
            running = [one for one in self._processes.values() if one.poll() is None]
        for process in running:
            _close_input(process)
        for process in running:
            _wait(process, STOP_S)

    def _of(self, run: str) -> subprocess.Popen[bytes] | None:
        with self._lock:
            return self._processes.get(run)

    def _environment(self) -> dict[str, str]:
        given = {
            "CLAW_STUDIO_API_KEY": self._settings.api_key,
            "CLAW_STUDIO_TLS_CERT": self._settings.tls_cert,
            "CLAW_STUDIO_TLS_KEY": self._settings.tls_key,
        }
        return {**os.environ, **{name: str(value) for name, value in given.items() if value is not None}}


def _close_input(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
