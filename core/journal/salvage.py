"""Reads a damaged segment: finds all valid records, and the damage between them."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from core.journal import layout

_CHUNK = 1 << 20
_HEADER_1 = struct.Struct("<II")
_BEGIN_1 = b'{"kind":"'
"""The first bytes of version 1 payloads. With an eight-byte header before them, they identify a record."""


class Damage(NamedTuple):
    """A range in which records are missing or invalid.

    Attributes:
        segment: name of the segment.
        offset: the writer's offset of the first damaged byte.
        next_offset: the writer's offset of the next valid record, or of the end.
        begin, end: range of invalid bytes in the file; empty if bytes are only missing.
        reason: a description of the damage.
    """

    segment: str
    offset: int
    next_offset: int
    begin: int
    end: int
    reason: str


class RecordPlace(NamedTuple):
    """A whole record or gap: its offset by its writer, and where in the file it is."""

    offset: int
    next_offset: int
    begin: int
    end: int
    payload_begin: int
    n_bytes: int
    gap: bool = False


def damage_between(segment: str, at: int, next_at: int, begin: int, end: int) -> Damage | None:
    """The damage between the end of a record and the begin of the next, in offsets and in the file; None if none."""
    n_missing, n_bad = next_at - at, max(end - begin, 0)
    if not n_missing and not n_bad and begin == end:
        return None
    if n_bad == 0:
        what = f"{n_missing} bytes are missing" if n_missing else "records are in another order than written"
    elif n_missing == n_bad:
        what = f"{n_bad} bytes are no record"
    else:
        what = f"{n_bad} bytes are no record, where {n_missing} were written"
    return Damage(segment, at, next_at, begin, max(begin, end), what)


def places(file: IO[bytes], salt: bytes, key: int, begin: int, at: int) -> list[RecordPlace]:
    """Valid records after byte ``begin`` of the file, in their writer's order, each once, none before offset ``at``."""
    by_offset: dict[int, RecordPlace] = {}
    while True:
        file.seek(begin)
        header = file.read(layout.RECORD_BYTES)
        frame = layout.unpack_frame(header, salt, key)
        if frame is not None and _crc(file, frame.length) == frame.crc:
            payload_begin, end = begin + layout.RECORD_BYTES, begin + layout.RECORD_BYTES + frame.length
            file.seek(payload_begin)
            next_offset = frame.next_offset(file.read(frame.length) if frame.gap else b"")
            file.seek(end)
            if file.read(layout.END_BYTES) == layout.pack_end(next_offset, key):
                end += layout.END_BYTES
            if frame.offset >= at:
                place = RecordPlace(frame.offset, next_offset, begin, end, payload_begin, frame.length, frame.gap)
                by_offset.setdefault(frame.offset, place)
            begin = end
        elif (begin := _find(file, salt, begin + 1)) < 0:
            return [by_offset[offset] for offset in sorted(by_offset)]


def places_1(file: IO[bytes], begin: int) -> Iterator[RecordPlace]:
    """Whole records of a segment of version 1, in file order."""
    while True:
        file.seek(begin)
        header = file.read(_HEADER_1.size)
        if len(header) == _HEADER_1.size:
            length, crc = _HEADER_1.unpack(header)
            if length <= layout.MAX_PAYLOAD_BYTES and _crc(file, length, zlib.crc32(header[:4])) == crc:
                end = begin + _HEADER_1.size + length
                yield RecordPlace(begin, end, begin, end, begin + _HEADER_1.size, length)
                begin = end
                continue
        if (following := _find(file, _BEGIN_1, begin + _HEADER_1.size + 1)) < 0:
            return
        begin = following - _HEADER_1.size


def find_salt(file: IO[bytes], name: str) -> bytes | None:
    """The salt of a segment whose head is damaged, from its first valid record; None if there is none."""
    key = layout.key_of(name)
    begin = 0
    while True:
        file.seek(begin)
        chunk = file.read(_CHUNK)
        at = chunk.find(b"\xff")
        while at >= 0:
            header = chunk[at : at + layout.RECORD_BYTES]
            salt = header[: layout.SALT_BYTES]
            if (frame := layout.unpack_frame(header, salt, key)) is not None:
                file.seek(begin + at + layout.RECORD_BYTES)
                if _crc(file, frame.length) == frame.crc:
                    return salt
            at = chunk.find(b"\xff", at + 1)
        if len(chunk) < _CHUNK:
            return None
        begin += _CHUNK - layout.RECORD_BYTES + 1


def quarantine_bytes(directory: Path, damage: Damage) -> Path:
    """Copy the bad bytes to a file next to their segment, which is not changed. OSError when that fails."""
    place = f"{damage.offset}-{damage.next_offset}.{damage.begin}-{damage.end}"
    path = directory / f"{damage.segment}.{place}{layout.BAD}"
    partial = path.with_name("." + path.name)
    with partial.open("wb") as out:
        if damage.end > damage.begin:
            with (directory / damage.segment).open("rb") as file:
                file.seek(damage.begin)
                n_left = damage.end - damage.begin
                while n_left and (chunk := file.read(min(n_left, _CHUNK))):
                    out.write(chunk)
                    n_left -= len(chunk)
    partial.replace(path)
    return path


_KEPT = re.compile(r"^(?P<segment>.+\.seg)\.(?P<offset>\d+)-(?P<next>\d+)\.(?P<begin>\d+)-(?P<end>\d+)\.bad$")


def quarantined_damages(directory: Path) -> list[Damage]:
    """The damages whose bytes were copied, by segment and offset."""
    damages = []
    for path in directory.glob("*" + layout.BAD):
        match = _KEPT.match(path.name)
        if match is not None:
            offset, following, begin, end = (int(match[name]) for name in ("offset", "next", "begin", "end"))
            damage = damage_between(match["segment"], offset, following, begin, end)
            damages.append(damage or Damage(match["segment"], offset, following, begin, end, "the bytes are no record"))
    return sorted(damages)


def _crc(file: IO[bytes], length: int, crc: int = 0) -> int | None:
    """CRC-32 of the next bytes of a file, begun at ``crc``; None when there are fewer."""
    while length:
        chunk = file.read(min(length, _CHUNK))
        if not chunk:
            return None
        crc = zlib.crc32(chunk, crc)
        length -= len(chunk)
    return crc


def _find(file: IO[bytes], needle: bytes, begin: int) -> int:
    """The first place of a needle at or after a byte of the file; -1 when there is none."""
    while True:
        file.seek(begin)
        chunk = file.read(_CHUNK)
        at = chunk.find(needle)
        if at >= 0:
            return begin + at
        if len(chunk) < _CHUNK:
            return -1
        begin += len(chunk) - len(needle) + 1
