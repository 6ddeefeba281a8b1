"""Runs ``core.tasks.learn`` in a process of its own and keeps its progress."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import IO, Any

from core.errors import InvalidInput
from core.tasks.learn import DEFAULTS

MAX_UPDATES = 1000
MAX_STALENESS = 16


class LearnProcess:
    """A learning run in the background. It ends with this process, or with ``stop``.

    Args:
        base_url: root of the studio.
        folder: for the trainer's weights and output.
        updates, seed, max_staleness: as in ``core.tasks.learn.LearnSettings``.
        control: ``shuffle`` for a second run afterwards with shuffled rewards; None for none.
        api_key: the admin key, if the studio requires one.
        tls_cert: the studio's certificate, for https.

    Raises:
        InvalidInput: updates, staleness or control are out of range.
    """

    def __init__(
        self,
        base_url: str,
        folder: Path,
        *,
        updates: int = DEFAULTS.updates,
        seed: int = 0,
        max_staleness: int = 0,
        control: str | None = None,
        api_key: str | None = None,
        tls_cert: Path | None = None,
    ) -> None:
        if not 1 <= updates <= MAX_UPDATES:
            raise InvalidInput(f"{updates} updates", field="updates", hint=f"a number from 1 to {MAX_UPDATES}")
        if not 0 <= max_staleness <= MAX_STALENESS:
            raise InvalidInput(
                f"max_staleness {max_staleness}", field="max_staleness", hint=f"a number from 0 to {MAX_STALENESS}"
            )
        if control not in (None, "shuffle"):
            raise InvalidInput(f"no control {control!r}", field="control", hint="shuffle, or leave it out")
        command = [sys.executable, "-m", "core.tasks.learn", "--studio", base_url, "--out", str(folder)]
        command += ["--updates", str(updates), "--seed", str(seed), "--max-staleness", str(max_staleness)]
        command += ["--control", control] if control else []
        command += ["--tls-cert", str(tls_cert)] if tls_cert else []
        self.control = control
        self._updates = updates
        self._lock = threading.Lock()
        self._events: list[dict[str, Any]] = []
        self._errors: deque[str] = deque(maxlen=20)
        self._stopped = False
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, **({"CLAW_STUDIO_API_KEY": api_key} if api_key else {}), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C in the terminal goes to this process, which stops the run in order
        )
        self._readers = [
            threading.Thread(target=read, args=(pipe,), daemon=True, name="learn-output")
            for read, pipe in ((self._read_events, self._process.stdout), (self._read_errors, self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def events(self) -> list[dict[str, Any]]:
        """All progress messages so far: ``event`` is run, evaluation, update, check_failed or error."""
        with self._lock:
            return list(self._events)

    def status(self) -> dict[str, Any]:
        """``{running, updates, update, run, control, seconds_update, error}``.

        ``run`` is the message that began the current run, ``update`` the number of its finished updates and
        ``seconds_update`` the duration of the last one.
        """
        events, running = self.events(), self.running
        place = max((n for n, one in enumerate(events) if one["event"] == "run"), default=-1)
        updates = [one for one in events[place + 1 :] if one["event"] == "update"]
        error = next((one for one in events if one["event"] == "error"), None)
        text = None if error is None else ": ".join(filter(None, (error["message"], error["hint"])))
        if text is None and not running and not self._stopped and self._process.returncode:
            text = (list(self._errors) or [f"the run ended with code {self._process.returncode}"])[-1]
        return {
            "running": running,
            "updates": self._updates,
            "update": len(updates),
            "run": events[place] if place >= 0 else None,
            "control": self.control,
            "seconds_update": round(updates[-1]["rollouts_s"] + updates[-1]["trainer_s"], 2) if updates else None,
            "error": text,
        }

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False if it still runs after ``timeout_s``."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        for reader in self._readers:
            reader.join(5.0)
        return True

    def stop(self, timeout_s: float = 20.0) -> None:
        """End the run: no further call is made, and the trainer is ended. What was captured stays."""
        self._stopped = True
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        if not self.join(timeout_s):
            self._process.kill()
            self.join()

    def _read_events(self, pipe: IO[str]) -> None:
        for line in pipe:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            with self._lock:
                self._events.append(message)

    def _read_errors(self, pipe: IO[str]) -> None:
        for line in pipe:
            if line.strip():
                self._errors.append(line.rstrip("\n"))
