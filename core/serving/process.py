"""Runs an engine in a child process: start it, wait until it is ready, stop it.

The child prints one ready line of JSON to stdout. It exits when its stdin reaches end of file, and therefore also when
the parent is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

from core.errors import EngineError, EngineTimeout

KINDS: Mapping[str, str] = {"local": "core.serving.local", "scripted": "core.serving.scripted"}
"""Kind of engine -> the module to run."""

STDERR_TAIL_LINES = 40


class EngineProcess:
    """An engine server in a child process. ``start`` does not block; ``wait_ready`` does.

    Attributes:
        kind: ``local`` or ``scripted``.
        base_url: ``http://127.0.0.1:PORT/v1`` once ready, else None.
        model: the served model's name once ready, else None.
        error: why it ended before it was ready, else None.
    """

    def __init__(self, process: subprocess.Popen[str], kind: str, startup_timeout_s: float) -> None:
        self.kind = kind
        self.base_url: str | None = None
        self.model: str | None = None
        self.error: str | None = None
        self._process = process
        self._startup_timeout_s = startup_timeout_s
        self._settled = threading.Event()
        self._stderr: deque[str] = deque(maxlen=STDERR_TAIL_LINES)
        self._err_reader = threading.Thread(target=self._read_stderr, name=f"{kind}-stderr", daemon=True)
        self._out_reader = threading.Thread(target=self._read_stdout, name=f"{kind}-stdout", daemon=True)
        self._err_reader.start()
        self._out_reader.start()

    @classmethod
    def start(
        cls,
        kind: str,
        *,
        args: Sequence[str | Path] = (),
        startup_timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """Start the engine with command-line ``args`` and return at once.

        Args:
            kind: a key of ``KINDS``.
            args: arguments of the engine's module, for example ``["--model-dir", path]``.
            startup_timeout_s: default timeout of ``wait_ready``, seconds.
            env: environment variables added to those of this process.

        Raises:
            EngineError: the kind is unknown or the interpreter could not be started.
        """
        if kind not in KINDS:
            raise EngineError(f"no engine kind {kind!r}", field="kind", hint=f"one of {', '.join(KINDS)}")
        command = [sys.executable, "-m", KINDS[kind], "--exit-with-parent", *map(str, args)]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1", **(env or {})},
                start_new_session=True,  # Ctrl-C in the terminal goes to the parent, which stops the engine in order
            )
        except OSError as error:
            raise EngineError(f"could not start the {kind} engine: {error}") from error
        return cls(process, kind, startup_timeout_s)

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is running, ready or not."""
        return self._process.poll() is None

    @property
    def ready(self) -> bool:
        """Whether the process is running and has printed its ready line."""
        return self.base_url is not None and self.alive

    @property
    def stderr_tail(self) -> str:
        """The last lines of the engine's stderr."""
        return "\n".join(self._stderr)

    def wait_ready(self, timeout_s: float | None = None) -> Self:
        """Block until the engine accepts requests.

        Raises:
            EngineError: it ended before it was ready; the message has the end of its stderr.
            EngineTimeout: it was not ready in time; it keeps running until ``stop``.
        """
        limit_s = self._startup_timeout_s if timeout_s is None else timeout_s
        if not self._settled.wait(limit_s):
            raise EngineTimeout(
                f"the {self.kind} engine was not ready after {limit_s:g} s",
                hint=self.stderr_tail or "it wrote nothing to stderr",
            )
        if self.error is not None:
            raise EngineError(self.error, hint=self.stderr_tail or None)
        return self

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop the process: close its stdin, then send SIGTERM, then SIGKILL. May be called twice."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None:
                self._process.send_signal(sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
                break
        for thread, pipe in ((self._out_reader, self._process.stdout), (self._err_reader, self._process.stderr)):
            thread.join(timeout_s)
            if pipe is not None and not thread.is_alive():
                pipe.close()

    def __enter__(self) -> Self:
        return self.wait_ready()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _read_stdout(self) -> None:
        for line in _lines(self._process.stdout):
            ready = _ready_line(line)
            if ready is not None and self.base_url is None:
                self.model = ready["model"]
                self.base_url = ready["base_url"]
                self._settled.set()
        code = self._process.wait()
        if self.base_url is None:
            self._err_reader.join(1.0)
            tail = self.stderr_tail.strip().splitlines()
            last = f": {tail[-1]}" if tail else ""
            self.error = f"the {self.kind} engine ended with code {code} before it was ready{last}"
        self._settled.set()

    def _read_stderr(self) -> None:
        for line in _lines(self._process.stderr):
            self._stderr.append(line.rstrip("\n"))


def _lines(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise EngineError("the engine's pipes are not open")
    return pipe


def _ready_line(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        values = json.loads(line)
    except ValueError:
        return None
    return values if isinstance(values, dict) and values.get("ready") else None
