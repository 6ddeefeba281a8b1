"""Messages between owner and worker: one JSON object per line, over the worker's stdin and stdout.

Pipes need no address and no key, keep their order, and end when either side ends.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from typing import IO, Any

import orjson


class Sender:
    """Writes messages in a thread, so that senders do not wait for a busy reader."""

    def __init__(self, pipe: IO[bytes], name: str) -> None:
        self._pipe = pipe
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message; it is lost if the process has ended."""
        self._lines.put(orjson.dumps(message, default=str))

    def close(self, timeout_s: float) -> None:
        """Write what is queued, then close the pipe."""
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (line := self._lines.get()) is not None:
                self._pipe.write(line + b"\n")
                self._pipe.flush()
            self._pipe.close()
        except (OSError, ValueError):
            # The other side has ended, or the pipe is closed; the process's end is handled elsewhere.
            return


def messages(pipe: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Messages until the other side ends. Other lines (prints of libraries) are ignored."""
    for line in pipe:
        if not line.startswith(b"{"):
            continue
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(message, dict):
            yield message
