"""Streams JSON records from a file: lines, an array, or one value; plain or gzip."""

from __future__ import annotations

import gzip
import io
import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import orjson

from core.errors import InvalidInput
from core.imports.base import ConvertedRecord, Problem, ReadResult, convert_record

MAX_VALUE_CHARS = 256 << 20
READ_CHARS = 1 << 20
_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[ \t\r\n,]*")

Raw = tuple[str, Any]
"""Position of a record, and the parsed record or a Problem."""


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file for reading bytes. Gzip is unpacked; a UTF-8 byte order mark is skipped."""
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    stream: IO[bytes] = (gzip.open if packed else open)(path, "rb")  # type: ignore[assignment]
    if stream.read(len(BOM_UTF8)) != BOM_UTF8:
        stream.seek(0)
    return stream


def records(path: Path, *, read_chars: int = READ_CHARS) -> Iterator[Raw]:
    """Yield the records of a file: its lines, the elements of one array, or of the list under ``data``.

    Arrays are read in pieces of ``read_chars`` characters; larger elements take larger pieces.
    """
    with open_bytes(path) as stream:
        head = stream.read(1 << 16).lstrip()
    if head.startswith(b"[") and not _is_line(head):
        yield from _array(path, read_chars)
    elif head.startswith(b"{") and not _is_line(head):
        yield from _one_value(path)
    else:
        yield from _lines(path)


def _is_line(head: bytes) -> bool:
    """Whether the first line is a complete JSON value, or may be one if it is longer than ``head``."""
    first, newline, rest = head.partition(b"\n")
    if not newline or not rest.strip():
        return not first.startswith(b"[") and first.rstrip() != b"{"
    try:
        return isinstance(orjson.loads(first), dict)
    except orjson.JSONDecodeError:
        return len(first) > 1 and first.startswith(b"{") and first.rstrip() != b"{"


def _lines(path: Path) -> Iterator[Raw]:
    with open_bytes(path) as stream:
        for number, line in enumerate(iter(partial(stream.readline, MAX_VALUE_CHARS + 1), b""), 1):
            where = f"{path.name}:{number}"
            if len(line) > MAX_VALUE_CHARS:
                yield where, Problem(where, None, "a line of more than 256 MB")
                return
            if not line.strip():
                continue
            try:
                yield where, orjson.loads(line)
            except orjson.JSONDecodeError as error:
                yield where, Problem(where, None, f"not JSON: {error}")


def _array(path: Path, read_chars: int) -> Iterator[Raw]:
    """Yield the elements of an array. Reading stops at a malformed one, since the start of the next is unknown."""
    with io.TextIOWrapper(open_bytes(path), encoding="utf-8", errors="surrogateescape") as stream:
        held = stream.read(read_chars)
        at, index = held.index("[") + 1, 0
        while True:
            at = _BETWEEN.match(held, at).end()  # type: ignore[union-attr]
            if held.startswith("]", at):
                return
            where = f"{path.name}[{index}]"
            problem = "the array does not end"
            try:
                value, end = _DECODER.raw_decode(held, at)
            except json.JSONDecodeError as error:
                end, problem = len(held) + 1, error.msg
            except RecursionError:
                yield where, Problem(where, None, "nested too deeply")
                return
            # Only a number could continue beyond the buffer, and a number is not a record.
            if end <= len(held):
                yield where, value
                at, index = end, index + 1
                continue
            # The buffer doubles each time, so the work is linear in the size of an element.
            held, at = held[at:], 0
            more = stream.read(max(read_chars, len(held)))
            if not more or len(held) > MAX_VALUE_CHARS:
                yield where, Problem(where, None, f"not JSON: {problem}")
                return
            held += more


def _one_value(path: Path) -> Iterator[Raw]:
    with open_bytes(path) as stream:
        raw = stream.read(MAX_VALUE_CHARS + 1)
    if len(raw) > MAX_VALUE_CHARS:
        yield path.name, Problem(path.name, None, "one JSON value of more than 256 MB: use JSON lines")
        return
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        yield path.name, Problem(path.name, None, f"not JSON: {error}")
        return
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        yield from ((f"{path.name}[{index}]", element) for index, element in enumerate(value["data"]))
    else:
        yield path.name, value


def first_record(path: Path) -> Any:
    """The first record that is JSON, to detect the format; None if there is none."""
    for number, (_, record) in enumerate(records(path)):
        if not isinstance(record, Problem):
            return record
        if number > 20:
            break
    return None


def converted(path: Path, convert: Callable[[str, Mapping[str, Any]], ConvertedRecord]) -> Iterator[ReadResult]:
    """Convert each record; one that ``convert`` refuses becomes a Problem with its position."""
    for where, record in records(path):
        if isinstance(record, Problem):
            yield record
        elif not isinstance(record, Mapping):
            yield Problem(where, None, "not a JSON object")
        else:
            yield convert_record(where, record, partial(convert, where, record))


def by_session(
    path: Path,
    key: Callable[[Mapping[str, Any]], str | None],
    convert: Callable[[Mapping[str, Any], str, int, bool], ConvertedRecord],
) -> Iterator[ReadResult]:
    """Convert a log in which calls of several sessions are interleaved.

    The file is read twice: first to count the calls of each session, then to convert them. ``convert`` gets the record,
    its session, the session's number of steps so far, and whether the record is the session's last. Records without a
    session are refused.
    """
    n_calls: dict[str, int] = {}
    for _, record in records(path):
        if isinstance(record, Mapping) and (session := key(record)) is not None:
            n_calls[session] = n_calls.get(session, 0) + 1
    n_steps: dict[str, int] = {}

    def place(where: str, record: Mapping[str, Any]) -> ConvertedRecord:
        session = key(record)
        if session is None:
            raise InvalidInput("the call has no session id", field="session")
        n_calls[session] -= 1
        index = n_steps.get(session, 0)
        converted_call = convert(record, session, index, n_calls[session] == 0)
        n_steps[session] = index + len(converted_call.steps)
        return ConvertedRecord(where, converted_call.steps, converted_call.rewards)

    yield from converted(path, place)
