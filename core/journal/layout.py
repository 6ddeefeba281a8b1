"""The binary format of a segment, and the file names in the journal's folder.

A segment (version 2) is a head and records, all little-endian:

    head    "CLAWJNL2" · salt (8 bytes) · CRC-32 of the salt · folder (16 bytes) · number and end of the writer's
            segment before it (uint64 each, 0 where that is not known) · length of the own name (uint16) · own name,
            filled up to 64 bytes · CRC-32 of all this
    record  salt · offset (uint64) · payload's length and CRC-32 (uint32 each) · CRC-32 of this header, begun at the
            CRC-32 of the segment's name · payload · CRC-32 of the offset after it (uint64), begun likewise
    gap     a record whose header's CRC-32 has another initial value and whose payload is the offset after it (uint64):
            the records between were removed (``core.journal.thinning``)

The salt is random, and begins with a byte that never occurs in UTF-8 text: the next record is found by searching for
it, and captured text is never taken for a record. Damage of up to 64 bytes leaves the salt or the first record intact.
``offset`` is the position at which the writer put the record: from it a reader knows the record's place, missing bytes
before it, and what it has read already, even if damage moved the bytes. The last four bytes mark the end of a record,
so that reading can resume at a position without reading the bytes before it.

Version 1 is "CLAWJNL1" and records of length, CRC-32 of length and payload, payload. It is still read.
"""

from __future__ import annotations

import os
import re
import struct
import threading
import zlib
from pathlib import Path
from typing import Final, NamedTuple

MAGIC: Final = b"CLAWJNL2"
MAGIC_1: Final = b"CLAWJNL1"
SUFFIX: Final = ".seg"
BAD: Final = ".bad"
"""File name suffix of copies of damaged bytes."""
MAX_PAYLOAD_BYTES: Final = 1 << 30
SALT_BYTES: Final = 8
FOLDER_BYTES: Final = 16
FOLDER_FILE: Final = "folder.id"

_NAME: Final = re.compile(r"^(?P<writer>[A-Za-z0-9_.]+)-(?P<number>\d{8,})\.seg$")
_SALT: Final = struct.Struct(f"<8s{SALT_BYTES}sI")
_HEAD: Final = struct.Struct(f"<{FOLDER_BYTES}sQQH")
_NAME_BYTES: Final = 64
_RECORD: Final = struct.Struct(f"<{SALT_BYTES}sQII")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
RECORD_BYTES: Final = _RECORD.size + _U32.size
"""A record's header."""
END_BYTES: Final = _U32.size
"""The bytes after a record's payload."""
FRAME_BYTES: Final = RECORD_BYTES + END_BYTES


class Head(NamedTuple):
    """A segment's header. ``before``: number and end of the writer's previous segment, 0 if not known."""

    name: str
    salt: bytes
    folder: bytes
    before: tuple[int, int]


class Frame(NamedTuple):
    """A record's or a gap's header: where its writer put it, the payload's length and CRC-32."""

    offset: int
    length: int
    crc: int
    gap: bool = False

    def next_offset(self, payload: bytes) -> int:
        """The first byte after the record or gap, as its writer counted."""
        return int(_U64.unpack(payload)[0]) if self.gap else self.offset + FRAME_BYTES + self.length


def new_salt() -> bytes:
    """Eight random bytes; the first never occurs in UTF-8 text."""
    return b"\xff" + os.urandom(SALT_BYTES - 1)


def key_of(name: str) -> int:
    """The initial value of checksums in a segment, so that records of other segments are not valid in it."""
    return zlib.crc32(name.encode())


def head_bytes(name: str) -> int:
    """Length of a segment's head: the offset of its first record."""
    return _SALT.size + _HEAD.size + max(len(name.encode()), _NAME_BYTES) + _U32.size


def pack_head(head: Head) -> bytes:
    """The head of a segment."""
    name = head.name.encode()
    packed = _SALT.pack(MAGIC, head.salt, zlib.crc32(head.salt)) + _HEAD.pack(head.folder, *head.before, len(name))
    packed += name.ljust(_NAME_BYTES, b"\0")
    return packed + _U32.pack(zlib.crc32(packed))


def unpack_head(data: bytes) -> Head | None:
    """The head at the beginning of ``data``; None if it is missing or damaged."""
    begin = _SALT.size + _HEAD.size
    if len(data) < begin or not data.startswith(MAGIC):
        return None
    folder, number, end, n = _HEAD.unpack_from(data, _SALT.size)
    stop = begin + max(n, _NAME_BYTES)
    if len(data) < stop + _U32.size or _U32.unpack_from(data, stop)[0] != zlib.crc32(data[:stop]):
        return None
    return Head(data[begin : begin + n].decode("utf-8", "replace"), _SALT.unpack_from(data)[1], folder, (number, end))


def unpack_salt(data: bytes) -> bytes | None:
    """The salt of a head whose other fields may be damaged; None if the salt is damaged."""
    if len(data) < _SALT.size:
        return None
    _, salt, crc = _SALT.unpack_from(data)
    return salt if zlib.crc32(salt) == crc else None


def pack_frame(salt: bytes, key: int, offset: int, length: int, crc: int) -> bytes:
    """A record's header."""
    packed = _RECORD.pack(salt, offset, length, crc)
    return packed + _U32.pack(zlib.crc32(packed, key))


def unpack_frame(data: bytes, salt: bytes, key: int) -> Frame | None:
    """The record's or gap's header in ``data``; None if it is not a valid header of this segment."""
    if len(data) != RECORD_BYTES or not data.startswith(salt):
        return None
    expected = _U32.unpack_from(data, _RECORD.size)[0]
    gap = zlib.crc32(data[: _RECORD.size], key) != expected
    if gap and zlib.crc32(data[: _RECORD.size], _gap_key(key)) != expected:
        return None
    _, offset, length, crc = _RECORD.unpack_from(data)
    return Frame(offset, length, crc, gap)


def pack_gap(salt: bytes, key: int, offset: int, next_offset: int) -> bytes:
    """A gap in place of removed records."""
    payload = _U64.pack(next_offset)
    header = pack_frame(salt, _gap_key(key), offset, len(payload), zlib.crc32(payload))
    return header + payload + pack_end(next_offset, key)


def _gap_key(key: int) -> int:
    return zlib.crc32(b"gap", key)


def pack_end(next_offset: int, key: int) -> bytes:
    """The end mark after a payload."""
    return _U32.pack(zlib.crc32(_U64.pack(next_offset), key))


def is_segment_name(name: str) -> bool:
    """Whether a file of this name is a segment of some writer."""
    return _NAME.match(name) is not None


def segment_name(writer: str, number: int) -> str:
    """File name of a writer's segment."""
    return f"{writer}-{number:08d}{SUFFIX}"


def writer_of(name: str) -> str:
    """The writer of a segment, by its name."""
    return name.rpartition("-")[0]


def number_of(name: str) -> int:
    """Which of its writer's segments it is, counted from 1."""
    return int(name.rpartition("-")[2].removesuffix(SUFFIX))


def segments(directory: Path) -> list[str]:
    """Names of the segments in a folder, by writer and number; an absent folder has none."""
    try:
        names = [path.name for path in directory.iterdir() if is_segment_name(path.name)]
    except FileNotFoundError:
        return []
    return sorted(names, key=lambda name: (writer_of(name), number_of(name)))


def read_head(path: Path) -> Head | None:
    """The head of the segment at ``path``; None if it is damaged or the file does not exist."""
    try:
        with path.open("rb") as file:
            return unpack_head(file.read(1 << 12))
    except FileNotFoundError:
        return None


def folder_id(directory: Path) -> bytes | None:
    """The folder's id, sixteen bytes in every segment of this folder; None if nothing was written yet."""
    return _written_id(directory / FOLDER_FILE) or _id_in_segments(directory)


def make_folder_id(directory: Path) -> bytes:
    """The folder's id; created and written if there is none. Raises OSError."""
    path = directory / FOLDER_FILE
    if (written := _written_id(path)) is not None:
        return written
    fresh = _id_in_segments(directory) or os.urandom(FOLDER_BYTES)
    temporary = directory / f".{FOLDER_FILE}.{os.getpid()}.{threading.get_ident()}"
    temporary.write_bytes(packed_id(fresh))
    try:
        # If several writers start at once, all use the id that was written first.
        os.link(temporary, path)
    except FileExistsError:
        if (kept := _written_id(path)) is not None:
            return kept
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return fresh


def packed_id(folder: bytes) -> bytes:
    """The content of the id's file."""
    return folder + _U32.pack(zlib.crc32(folder))


def _written_id(path: Path) -> bytes | None:
    try:
        return unpacked_id(path.read_bytes())
    except FileNotFoundError:
        return None


def unpacked_id(data: bytes) -> bytes | None:
    """The id in the content of its file; None if it is damaged."""
    folder, crc = data[:FOLDER_BYTES], data[FOLDER_BYTES:]
    return folder if crc == _U32.pack(zlib.crc32(folder)) and len(folder) == FOLDER_BYTES else None


def _id_in_segments(directory: Path) -> bytes | None:
    """The id in most of the segments, for a folder restored from a backup, which has no id file."""
    counts: dict[bytes, int] = {}
    for name in segments(directory):
        if (head := read_head(directory / name)) is not None and head.name == name:
            counts[head.folder] = counts.get(head.folder, 0) + 1
    return max(counts, key=lambda one: counts[one]) if counts else None
