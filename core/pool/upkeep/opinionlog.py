"""The opinions log: labels and all other data that is not in the journal, durable before a request is answered.

The journal holds the facts, this log the rest: labels, rewards, views, recipes, dataset versions, leases,
deletions. A pool file that is lost or damaged is made again from both. The log is a journal of its own
(``core.journal``): checksummed append-only segments, one sync per write.

A record is a line of JSON, ``{v, n, kind, at, parts: [[table, bytes], ...]}``, and after it each table's rows as an
Arrow stream. ``n`` counts up by one, so a record that is missing shows. Kinds: ``change`` (a transaction's rows),
``snapshot`` (a piece of all that there was when the log began), ``begun`` (a file holds all before it), ``void`` (the
change ``voids`` was never committed).

A log is identified by its name, the generation. A new generation begins, with a snapshot, if there is none or if the
newest does not fit the pool's file; older ones are kept. A generation that replaces another (see
``core.pool.upkeep.compaction``) names it in its ``begun`` record: ``replaces``.

The plans of batches are stored once, in segments of their own; pool and log hold only a plan's position in them.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from core.errors import JournalError, OpinionsError
from core.journal import SUFFIX, Damage, Journal, JournalReader, Position, Record, read_after, read_segment
from core.pool.upkeep.loggedtables import Parts

VERSION = 1
SEGMENT_BYTES = 64 << 20
PLANS = "plans"
"""Begins the names of the segments that hold plans."""
_GENERATION = re.compile(r"^o\d{6}_[0-9a-f]{8}$")
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, slots=True)
class Entry:
    """One record: its number, kind, what it voids and which log it replaces (or None), and its tables, read when asked
    for; ``n_bytes`` is its length.
    """

    n: int
    kind: str
    at: float
    voids: int | None
    replaces: str | None
    names: list[tuple[str, int]]
    body: bytes

    @property
    def n_bytes(self) -> int:
        """Length of its tables, bytes."""
        return len(self.body)

    def parts(self) -> Parts:
        """The rows by table. OpinionsError when they can't be read."""
        parts: Parts = []
        offset = 0
        for name, size in self.names:
            piece = self.body[offset : offset + size]
            offset += size
            try:
                with pa.ipc.open_stream(piece) as reader:
                    parts.append((name, reader.read_all()))
            except (pa.ArrowInvalid, OSError) as error:
                raise OpinionsError(f"record {self.n} of the opinions log can't be read: {error}") from error
        return parts


class OpinionLog:
    """Writes one generation of the log. Calls are serialised by the pool's writer lock.

    Raises:
        OpinionsError: the folder can't be written.
        AlreadyOwned: another process writes this log.
    """

    def __init__(self, directory: Path, generation: str, n: int, clock: Callable[[], float]) -> None:
        self.directory = directory
        self.generation = generation
        self.n = n
        self._clock = clock
        self._unvoided: list[int] = []
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._journal = Journal(directory, writer=generation, segment_bytes=SEGMENT_BYTES)
        self._plans: Journal | None = None
        self._last: Position = ("", 0)
        self.begun_bytes: int | None = None

    @property
    def n_bytes(self) -> int:
        """Length of all its segments."""
        return self._journal.n_bytes

    @property
    def in_place(self) -> bool:
        """Whether the log's folder is the one that was opened: not removed, renamed or replaced since."""
        return self._journal.in_place

    @property
    def unvoided(self) -> frozenset[int]:
        """Changes that were not committed and have no ``void`` record yet."""
        return frozenset(self._unvoided)

    @property
    def mark(self) -> str:
        """The position of the next append."""
        return self._journal.mark()

    def append(self, kind: str, parts: Parts, **more: Any) -> int:
        """Make rows durable; returns the record's number. OpinionsError when the disk does not take them."""
        while self._unvoided:
            self._write("void", [], voids=self._unvoided[0])
            self._unvoided.pop(0)
        return self._write(kind, parts, **more)

    def keep_plan(self, batch_uid: str, parts: Mapping[str, bytes]) -> str:
        """Make a batch's plan durable; returns its place. OpinionsError when the disk does not take it."""
        if self._plans is None:
            self._plans = Journal(self.directory, writer=PLANS, segment_bytes=SEGMENT_BYTES)
        sizes = [[name, len(body)] for name, body in parts.items()]
        head = {"v": VERSION, "kind": "plan", "at": self._clock(), "batch_uid": batch_uid, "parts": sizes}
        segment, offset = self._appended(self._plans, b"".join([orjson.dumps(head), b"\n", *parts.values()]))
        return f"{segment}:{offset}"

    def void(self, n: int) -> None:
        """Mark a change as not committed.

        Where that can't be written now, the change is cut off again, which needs no room; where that fails too, it is
        said before the next change.
        """
        self._unvoided.append(n)
        try:
            self._write("void", [], voids=n)
        except OpinionsError:
            if n != self.n or not self._cut_last():
                return
        self._unvoided.remove(n)

    def _cut_last(self) -> bool:
        segment, offset = self._last
        self._journal.close()
        try:
            with (self.directory / segment).open("r+b") as file:
                file.truncate(offset)
                os.fsync(file.fileno())
        except OSError:
            return False
        finally:
            self._journal = Journal(self.directory, writer=self.generation, segment_bytes=SEGMENT_BYTES)
        self.n -= 1
        return True

    def close(self) -> None:
        """Give the log's name back."""
        self._journal.close()
        if self._plans is not None:
            self._plans.close()

    def _write(self, kind: str, parts: Parts, **more: Any) -> int:
        bodies = [(name, _stream(table)) for name, table in parts]
        head = {
            "v": VERSION,
            "n": self.n + 1,
            "kind": kind,
            "at": self._clock(),
            "parts": [[name, len(body)] for name, body in bodies],
            **more,
        }
        payload = b"".join([orjson.dumps(head), b"\n", *(body for _, body in bodies)])
        self._last = self._appended(self._journal, payload)
        self.n += 1
        return self.n

    def _appended(self, journal: Journal, payload: bytes) -> Position:
        try:
            return journal.append(payload).result()
        except JournalError as error:
            raise OpinionsError(
                f"The opinions log can't be written: {error.message}",
                field="data_dir",
                hint="Free some room on its disk and try again: nothing was changed.",
            ) from error


def new_generation(directory: Path) -> str:
    """A generation's name that sorts after the existing ones."""
    last = max((int(name[1:7]) for name in generations(directory)), default=0)
    return f"o{last + 1:06d}_{secrets.token_hex(4)}"


def generations(directory: Path) -> list[str]:
    """Names of the logs in a folder, the newest last."""
    names = {path.name.rpartition("-")[0] for path in directory.glob("*" + SUFFIX)}
    return sorted(name for name in names if _GENERATION.match(name))


def read_generation(directory: Path, generation: str) -> Iterator[Entry]:
    """All whole records of one log, each number once."""
    return read_tail(directory, f"{generation}.0.0")


def read_plan(directory: Path, batch_uid: str, place: str) -> dict[str, bytes]:
    """A batch's plan at the place that ``keep_plan`` gave, by part. OpinionsError when it is damaged or gone."""
    segment, _, offset = place.rpartition(":")
    record = next(read_segment(directory, segment, int(offset)), None)
    line, _, body = b"{}".partition(b"\n") if record is None else record.payload.partition(b"\n")
    head = orjson.loads(line)
    if record is None or record.offset != int(offset) or head["batch_uid"] != batch_uid:
        raise OpinionsError(
            f"The plan of batch {batch_uid!r}, {place} in {directory}, is damaged or gone.",
            field="batch_uid",
            hint="A backup of the data folder may hold it.",
        )
    parts: dict[str, bytes] = {}
    begin = 0
    for name, size in head["parts"]:
        parts[name] = body[begin : begin + size]
        begin += size
    return parts


def read_tail(directory: Path, mark: str) -> Iterator[Entry]:
    """The whole records of a log from a mark on, each number once."""
    return _entries(read_after(directory, mark))


def newest_whole(directory: Path) -> str | None:
    """The newest log that has begun; None when there is none."""
    return next((one for one in reversed(generations(directory)) if log_start(directory, one) is not None), None)


@dataclass(frozen=True, slots=True)
class LogStart:
    """The start of a log: the log that it replaced (or None), the number of bytes before its first ``begun`` record,
    and whether records follow it.
    """

    replaces: str | None
    n_bytes: int
    has_records: bool


def log_start(directory: Path, generation: str) -> LogStart | None:
    """How a log began; None for one that did not get past its snapshot."""
    first: LogStart | None = None
    n_bytes = 0
    for entry in read_generation(directory, generation):
        if first is not None:
            return replace(first, has_records=True)
        n_bytes += entry.n_bytes
        if entry.kind == "begun":
            first = LogStart(entry.replaces, n_bytes, has_records=False)
    return first


def remove_generation(directory: Path, generation: str) -> None:
    """Delete a log's files, the newest first: what an interrupted removal leaves has still begun."""
    for path in sorted(directory.glob(f"{generation}-*{SUFFIX}"), reverse=True):
        path.unlink(missing_ok=True)
    (directory / f"{generation}.lock").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class LogReport:
    """What reading a log whole shows: ``missing`` counts numbers that are not there though later ones are,
    ``plans_damaged`` places beside it where plans should be and are not.
    """

    generation: str | None
    n_records: int
    last: int
    missing: int
    plans_damaged: int


def inspect(directory: Path, *, known: tuple[str, int] | None = None) -> LogReport:
    """Read a log and count its missing records.

    Args:
        known: the log that the pool's file refers to, and a record that it surely has; None: the newest log.
    """
    if known is not None and known[0] not in generations(directory):
        known = None
    generation = newest_whole(directory) if known is None else known[0]
    plans = _damaged_plans(directory)
    if generation is None:
        return LogReport(None, 0, 0, 0, plans)
    numbers = {entry.n for entry in read_generation(directory, generation)}
    last = max(*numbers, 0 if known is None else known[1])
    return LogReport(generation, len(numbers), last, last - len(numbers), plans)


def _damaged_plans(directory: Path) -> int:
    """Number of damaged places in stored plans. Damage at the end counts if a second read finds it unchanged."""
    reader, places, n = JournalReader(directory), dict[str, int](), 0
    for item in chain.from_iterable(one for _ in range(2) for one in reader.read(places)):
        places[item.segment] = item.next_offset
        n += isinstance(item, Damage) and item.segment.startswith(f"{PLANS}-")
    return n


def _entries(records: Iterator[Record]) -> Iterator[Entry]:
    seen: set[int] = set()
    for record in records:
        entry = _parse(record.payload)
        # A duplicate segment repeats its records.
        if entry is not None and entry.n not in seen:
            seen.add(entry.n)
            yield entry


def _parse(payload: bytes) -> Entry | None:
    """None for a record that is none of this log; its number is missing then."""
    line, _, body = payload.partition(b"\n")
    try:
        head = orjson.loads(line)
        if head["v"] > VERSION:
            raise OpinionsError(
                f"The opinions log is of a newer version ({head['v']}) than this Claw Studio knows ({VERSION}).",
                field="data_dir",
                hint="Update claw-studio.",
            )
        names = [(str(name), int(size)) for name, size in head["parts"]]
        references = head.get("voids"), head.get("replaces")
        return Entry(int(head["n"]), str(head["kind"]), float(head["at"]), *references, names, body)
    except (ValueError, KeyError, TypeError):
        return None


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_COMPRESSED) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
