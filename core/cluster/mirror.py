"""The mirror: copies the segments of other machines into the pool's journal folder, under the same name and offsets.

So ingest reads them like its own, and what it has read is known by position: each record is stored once, whatever is
copied twice. The mirror sets a writer's watermark (``core.journal.watermarks``) to the time at which the listing began
whose bytes it has copied and synced. A segment's next one is copied after it is whole.

Each node has a thread that asks its agent for a listing (``core.cluster.agent``). If a node is gone, its commits are
taken from the journal's target, where there is one. The mirror holds the lock of each writer of which more may come: a
reader then takes an unfinished end for a record that is still being written, not for damage.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from core.durable import sync_folder
from core.errors import AlreadyOwned
from core.journal import Target, Watermarks, write_watermarks
from core.journal.layout import number_of, segments, writer_of
from core.journal.lock import hold_lock

POLL_S: Final = 0.05
SLOW_POLL_S: Final = 0.5
"""Between listings of a node: ``POLL_S`` for up to eight nodes, longer for more, at most ``SLOW_POLL_S``."""
RETRY_S: Final = 0.5
REQUEST_S: Final = 10.0
COPY_BYTES: Final = 8 << 20
CHECKED_BYTES: Final = 1 << 20
"""After a start the end of a segment is copied again: a power failure may have left other bytes there."""
CLOCK_OFF_S: Final = 1.0
"""A node whose clock differs by more is named, seconds."""
TARGET_EVERY_S: Final = (5.0, 300.0)
"""Between listings of the target for nodes that are gone, at first and in the end."""
REMOTE: Final = "node."
"""Names of other machines' writers begin with it."""
FINISHED: Final = "mirrored.json"
"""A file of the journal's folder: writers of other machines of which no more will come."""

log = logging.getLogger(__name__)


@dataclass
class _Node:
    """What is known of one node's journal. ``until``: of the last listing whose bytes are here, UTC seconds."""

    name: str
    address: tuple[str, int]
    until: float | None = None
    listed_at: float | None = None
    clock_off_s: float | None = None
    at_risk_bytes: int = 0
    problem: str | None = None
    gone: bool = False
    forgotten: bool = False
    writers: set[str] = field(default_factory=set)
    """Those of which more may come."""
    closed: set[str] = field(default_factory=set)
    """Those whose connection has ended."""
    thread: threading.Thread | None = None


class Mirror:
    """Copies the segments of all nodes that it follows. Thread-safe.

    Args:
        directory: the pool's journal folder.
        positions: segment -> offset up to which the pool has read it.
        token: the cluster's token.
        target: the journal's target, None for ``local``.
        on_copied: called when bytes were copied.
        clock: UTC seconds.
    """

    def __init__(
        self,
        directory: Path,
        *,
        positions: Callable[[], Mapping[str, int]],
        token: str,
        target: Target | None,
        on_copied: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._dir = directory
        self._positions = positions
        self._token = token
        self._target = target
        self._on_copied = on_copied
        self._clock = clock
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._nodes: dict[str, _Node] = {}
        self._locks: dict[str, int] = {}
        self._connected: set[str] = set()
        """Writers whose connection is open. Such a one has not ended, also if its lock is not held yet."""
        self._checked: set[str] = set()
        self._whole: set[str] = set()
        """Finished segments that are here."""
        self._moved = threading.Event()
        self._lost_node = threading.Event()
        self._writing = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        self._finished = set(_read_finished(directory))
        self._until = dict(Watermarks(directory).read())
        for writer in {writer_of(name) for name in segments(directory)} | set(self._until):
            if writer.startswith(REMOTE) and writer not in self._finished:
                self._hold(writer)
        self._recovery: threading.Thread | None = None
        self._publisher = threading.Thread(target=self._publish, name="mirror", daemon=True)
        self._publisher.start()
        self._look_into_target()

    def close(self) -> None:
        """Stop copying, and release the writers' names."""
        self._closing.set()
        self._moved.set()
        self._lost_node.set()
        with self._lock:
            threads = [node.thread for node in self._nodes.values()] + [self._recovery, self._publisher]
        for thread in threads:
            if thread is not None:
                thread.join(REQUEST_S + 5.0)
        with self._lock:
            for fd in self._locks.values():
                os.close(fd)
            self._locks.clear()

    def follow(self, name: str, host: str, port: int) -> None:
        """Copy the segments of a node from its agent's address, from now on."""
        with self._lock:
            node = self._nodes.get(name)
            if node is None or node.forgotten:
                node = self._nodes[name] = _Node(name, (host, port))
            node.address, node.gone = (host, port), False
            if node.thread is None or not node.thread.is_alive():
                node.thread = threading.Thread(target=self._run, args=(node,), name=f"mirror-{name}", daemon=True)
                node.thread.start()

    def expect(self, name: str, writer: str) -> None:
        """A writer of a node begins now: its records come later than this."""
        with self._lock:
            self._hold(writer)
            self._connected.add(writer)
            if (node := self._nodes.get(name)) is not None:
                node.writers.add(writer)
            self._until[writer] = self._clock()
        self._write()

    def closed(self, name: str, writer: str) -> None:
        """The connection of a writer of a node has ended."""
        with self._lock:
            self._connected.discard(writer)
            if (node := self._nodes.get(name)) is not None:
                node.closed.add(writer)

    def node_gone(self, name: str) -> None:
        """A node has ended. What its target has is copied; its disk may come back."""
        with self._lock:
            if (node := self._nodes.get(name)) is not None:
                node.gone = True
            self._lost_node.set()
            self._look_into_target()

    def forget(self, name: str) -> None:
        """A node's disk does not come back: no more is waited for."""
        with self._lock:
            node = self._nodes.pop(name, None)
            if node is None:
                return
            node.forgotten = True
            self._finish(node.writers)
        self._write()

    def status(self, name: str) -> dict[str, Any]:
        """``{until, behind_s, at_risk_bytes, clock_off_s, problem}`` of a node.

        ``until``: all that the node wrote up to then is here and on disk, UTC seconds. ``at_risk_bytes``: what the last
        listing had and is not here. ``clock_off_s``: how far the node's clock is ahead of this machine's.
        """
        with self._lock:
            node = self._nodes.get(name) or _Node(name, ("", 0))
            behind_s = None if node.until is None else max(0.0, self._clock() - node.until)
            off_s = node.clock_off_s or 0.0
            if node.problem is None and abs(off_s) > CLOCK_OFF_S:
                node.problem = f"its clock is {abs(off_s):.1f} s {'ahead' if off_s > 0 else 'behind'}: use NTP"
            return {
                "until": node.until,
                "behind_s": behind_s,
                "at_risk_bytes": node.at_risk_bytes,
                "clock_off_s": node.clock_off_s,
                "problem": node.problem,
            }

    def _run(self, node: _Node) -> None:
        connection: http.client.HTTPConnection | None = None
        address: tuple[str, int] | None = None
        while not self._closing.is_set() and not node.forgotten:
            try:
                if connection is None or address != node.address:
                    address = node.address
                    connection = http.client.HTTPConnection(*address, timeout=REQUEST_S)
                self._round(node, connection)
                node.problem = None
                wait_s = min(max(POLL_S, POLL_S * len(self._nodes) / 8), SLOW_POLL_S)
            except (OSError, http.client.HTTPException, ValueError, KeyError, AlreadyOwned) as error:
                if connection is not None:
                    connection.close()
                connection = None
                # A node that is gone says so itself.
                node.problem = None if node.gone else f"its records can't be copied: {error or type(error).__name__}"
                wait_s = RETRY_S
            self._closing.wait(wait_s)

    def _round(self, node: _Node, connection: http.client.HTTPConnection) -> None:
        """Copy what one listing has, then move the watermarks of the node's writers to its time."""
        asked_at = self._clock()
        with self._lock:
            # Before the listing: a writer that begins or ends meanwhile is for the next one.
            connected, closed = set(self._connected), set(node.closed)
        listing = json.loads(self._get(connection, "/segments"))
        sizes: dict[str, int] = listing["segments"]
        # Neither a clock that is ahead nor one that is behind makes records visible that are not here.
        until = min(asked_at, float(listing["at"]))
        node.clock_off_s, node.listed_at = float(listing["at"]) - asked_at, asked_at
        writers = {writer_of(name) for name in sizes} - self._finished
        missing = self._missing({name: size for name, size in sizes.items() if writer_of(name) in writers})
        node.at_risk_bytes = sum(size - self._size(name) for name, size in missing.items())
        with self._lock:
            for writer in writers - self._locks.keys():
                self._hold(writer)
            node.writers |= writers
        for name in sorted(missing, key=_order):

            def read(begin: int, end: int, name: str = name) -> bytes:
                return self._get(connection, f"/segments/{name}?begin={begin}&end={end}")

            self._copy(name, missing[name], read)
            if node.forgotten or self._closing.is_set():
                return
        node.at_risk_bytes = 0
        with self._lock:
            ended = node.writers & set(listing["ended"]) - connected
            # One that ended before it wrote has neither segment nor lock. So has one whose disk was lost.
            unlisted = (node.writers & closed) - writers - ended
            if self._target is None:
                ended |= unlisted
            elif unlisted:
                node.writers -= unlisted
                node.closed -= unlisted
                self._lost_node.set()
                self._look_into_target()
            node.until = until
            for writer in node.writers - ended:
                self._until[writer] = max(until, self._until.get(writer, until))
            if ended:
                self._finish(ended)
                node.writers -= ended
                node.closed -= ended
        self._moved.set()
        if missing:
            self._on_copied()

    def _missing(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Those of the segments, with their sizes, of which bytes are missing here."""
        newest = {writer_of(name): name for name in sorted(sizes, key=_order)}
        here = {name: self._size(name) for name in sizes if name not in self._whole}
        shorter = {name: sizes[name] for name, size in here.items() if sizes[name] > size}
        finished = [name for name in sizes if name != newest[writer_of(name)]]
        if any(name in shorter for name in finished):
            # A segment that the pool has read may have been thinned.
            positions = self._positions()
            shorter = {name: size for name, size in shorter.items() if size > positions.get(name, 0)}
        # Each copy is synced before the next, so what a power failure may have taken is of a writer's newest segment.
        last_here = {writer_of(name): name for name in sorted(here, key=_order) if here[name]}
        unsure = {name: sizes[name] for name in last_here.values() if here[name] == sizes[name]}
        missing = shorter | {name: size for name, size in unsure.items() if name not in self._checked}
        self._whole.update(name for name in finished if name not in missing)
        return missing

    def _copy(self, name: str, size: int, read: Callable[[int, int], bytes]) -> None:
        """Append what a segment here lacks up to ``size``, and sync it."""
        path = self._dir / name
        begin = self._size(name)
        if name not in self._checked:
            begin = max(0, begin - CHECKED_BYTES)
            self._checked.add(name)
        is_new = not path.exists()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while begin < size:
                data = read(begin, min(begin + COPY_BYTES, size))
                if not data:
                    raise OSError(f"{name} ends at {begin} instead of {size}")
                view = memoryview(data)
                while view:
                    n = os.pwrite(fd, view, begin)
                    view, begin = view[n:], begin + n
            getattr(os, "fdatasync", os.fsync)(fd)
        finally:
            os.close(fd)
        if is_new:
            sync_folder(self._dir)

    def _without_node(self) -> set[str]:
        """Writers of which more may come, and whose node is gone or has not come since the start."""
        with self._lock:
            present = {writer for node in self._nodes.values() if not node.gone for writer in node.writers}
            return set(self._locks) - present

    def _look_into_target(self) -> None:
        with self._lock:
            if self._target is None or not self._without_node():
                return
            if self._recovery is None:
                self._recovery = threading.Thread(target=self._recover, name="mirror-target", daemon=True)
                self._recovery.start()

    def _publish(self) -> None:
        """Write the watermarks when they have moved: for all nodes at once, since each write is synced."""
        while not self._closing.is_set():
            self._moved.wait()
            self._moved.clear()
            try:
                self._write()
            except OSError as error:
                log.error("the watermarks can't be written: %s", error.strerror)
                self._closing.wait(RETRY_S)
            self._closing.wait(POLL_S)

    def _write(self) -> None:
        with self._writing:
            with self._lock:
                until = dict(self._until)
            write_watermarks(self._dir, until)

    def _recover(self) -> None:
        """Copy the commits of nodes that are gone from the target, again and again, since a frozen one may go on."""
        every_s, longest_s = TARGET_EVERY_S
        assert self._target is not None
        while not self._closing.is_set():
            with self._lock:
                self._lost_node.clear()
                gone = self._without_node()
                if not gone:
                    self._recovery = None
                    return
            try:
                self._recover_once(self._target, gone)
            except (OSError, AlreadyOwned) as error:
                log.warning("the journal's target can't be read: %s", error)
            every_s = TARGET_EVERY_S[0] if self._lost_node.wait(every_s) else min(2 * every_s, longest_s)

    def _recover_once(self, target: Target, writers: set[str]) -> None:
        begun_at = self._clock()
        sizes = {name: size for name, size in target.sizes().items() if writer_of(name) in writers}
        missing = self._missing(sizes)
        for name in sorted(missing, key=_order):

            def read(begin: int, end: int, name: str = name) -> bytes:
                return target.read(name, begin, end)

            self._copy(name, missing[name], read)
        with self._lock:
            for node in self._nodes.values():
                if node.gone and node.writers <= writers:
                    node.until = max(begun_at, node.until or begun_at)
                    node.at_risk_bytes = 0
            # Every call that they answered is here, so nothing waits for them.
            for writer in writers & self._without_node():
                self._until.pop(writer, None)
        self._moved.set()
        if missing:
            self._on_copied()

    def _get(self, connection: http.client.HTTPConnection, path: str) -> bytes:
        connection.request("GET", path, headers={"X-Claw-Token": self._token})
        with connection.getresponse() as response:
            body = response.read()
        if response.status != 200:
            raise ValueError(f"its agent answers {response.status} to {path.partition('?')[0]}")
        return body

    def _size(self, name: str) -> int:
        try:
            return (self._dir / name).stat().st_size
        except FileNotFoundError:
            return 0

    def _hold(self, writer: str) -> None:
        if writer not in self._locks:
            self._locks[writer] = hold_lock(self._dir / f"{writer}.lock")

    def _finish(self, writers: Iterable[str]) -> None:
        """No more will come of these writers, and all of them is here."""
        self._finished |= set(writers)
        temporary = self._dir / f".{FINISHED}.{os.getpid()}"
        with temporary.open("w") as file:
            json.dump(sorted(self._finished), file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._dir / FINISHED)
        for writer in writers:
            self._until.pop(writer, None)
            if (fd := self._locks.pop(writer, None)) is not None:
                os.close(fd)
                with contextlib.suppress(OSError):
                    (self._dir / f"{writer}.lock").unlink()


def _order(name: str) -> tuple[str, int]:
    return writer_of(name), number_of(name)


def _read_finished(directory: Path) -> list[str]:
    try:
        return [str(writer) for writer in json.loads((directory / FINISHED).read_text())]
    except FileNotFoundError:
        return []
