"""One gateway worker as the fleet has it: its process, on this machine or another, and its state."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import IO, Any, Final, Protocol

from core.workers.pipe import Sender

SILENT_LOOKS: Final = 20
"""Looks without a sign of life, half a second each, after which a worker is reported. A worker gives one each second.
"""


class GatewayProcess(Protocol):
    """The part of ``subprocess.Popen`` that is used of a worker, here or on another machine."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def kill(self) -> None:
        """End it at once."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""


class WorkerProcess:
    """One worker's process and its state. ``node``: its machine, None for this one; ``slot``: which one there."""

    def __init__(
        self, name: str, popen: GatewayProcess, begin: Mapping[str, Any], node: str | None = None, slot: str = ""
    ) -> None:
        self.name = name
        self.node = node
        self.slot = slot or name
        self.started_at = time.monotonic()
        self.acked = 0
        self.drained = 0
        self.failure: str | None = None
        self.ready = False
        self.n_missed = 0
        self.port: int | None = None
        self.ended = False
        """Whether its end was seen on its machine."""
        self.popen = popen
        assert self.popen.stdin is not None
        self.sender = Sender(self.popen.stdin, f"to-{name}")
        self.sender.send(begin)

    @property
    def silent(self) -> bool:
        """Whether it has given no sign of life for ten seconds."""
        return self.n_missed >= SILENT_LOOKS

    @property
    def state(self) -> str:
        """``up``, ``silent``, ``starting``, or ``restarting`` when it has ended and another is about to start."""
        if self.ended:
            return "restarting"
        return "starting" if not self.ready else "silent" if self.silent else "up"
