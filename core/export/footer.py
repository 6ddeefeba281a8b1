"""Joins Parquet files of one schema without decoding them: row groups are copied, and the footer is written anew.

The footer is a Thrift struct in the compact protocol, see
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md and
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift. Every field is kept as it is,
except positions in the file, the ordinals of row groups, and the number of rows. So a joined file has the bytes that
one writer of all row groups gives.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from core.errors import InvalidInput
from core.export.sink import Sink

MAGIC = b"PAR1"
COPY_BYTES = 4 << 20
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

# Fields of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData.
NUM_ROWS, ROW_GROUPS = 3, 4
COLUMNS, GROUP_OFFSET, ORDINAL = 1, 5, 7
CHUNK_OFFSET, META_DATA, OFFSET_INDEX, COLUMN_INDEX = 2, 3, 4, 6
PAGE_OFFSETS = (9, 10, 11, 14)


@dataclass(slots=True)
class Struct:
    """A Thrift struct: field id -> (type, value), in the order of the file."""

    fields: dict[int, tuple[int, Any]]

    def get(self, name: int) -> Any:
        """A field's value; None if it is absent."""
        return self.fields[name][1] if name in self.fields else None

    def set(self, name: int, value: Any) -> None:
        """Replace the value of a field that is present."""
        self.fields[name] = (self.fields[name][0], value)


@dataclass(slots=True)
class ListOf:
    """A Thrift list: the type of its items, and the items."""

    kind: int
    items: list[Any]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def zigzag(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def take(self, n: int) -> bytes:
        self.at += n
        return self.data[self.at - n : self.at]

    def value(self, kind: int) -> Any:
        if kind in (TRUE, FALSE, BYTE):
            return self.byte()
        if kind in (I16, I32, I64):
            return self.zigzag()
        if kind == DOUBLE:
            return self.take(8)
        if kind == BINARY:
            return self.take(self.varint())
        if kind in (LIST, SET):
            head = self.byte()
            n = self.varint() if head >> 4 == 15 else head >> 4
            return ListOf(head & 15, [self.value(head & 15) for _ in range(n)])
        if kind == STRUCT:
            return self.struct()
        raise InvalidInput(f"a Parquet footer has a value of the Thrift type {kind}", field="dataset")

    def struct(self) -> Struct:
        fields: dict[int, tuple[int, Any]] = {}
        name = 0
        while head := self.byte():
            name = name + (head >> 4) if head >> 4 else self.zigzag()
            kind = head & 15
            # A field of type bool has its value in the type.
            fields[name] = (kind, None if kind in (TRUE, FALSE) else self.value(kind))
        return Struct(fields)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _encoded(kind: int, value: Any) -> bytes:
    if kind in (TRUE, FALSE, BYTE):
        return bytes([value])
    if kind in (I16, I32, I64):
        return _zigzag(value)
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return _varint(len(value)) + bytes(value)
    if kind in (LIST, SET):
        n = len(value.items)
        head = bytes([n << 4 | value.kind]) if n < 15 else bytes([0xF0 | value.kind]) + _varint(n)
        return head + b"".join(_encoded(value.kind, item) for item in value.items)
    pieces, before = [], 0
    for name, (field_kind, field_value) in value.fields.items():
        step = name - before
        pieces.append(bytes([step << 4 | field_kind]) if 0 < step <= 15 else bytes([field_kind]) + _zigzag(name))
        if field_kind not in (TRUE, FALSE):
            pieces.append(_encoded(field_kind, field_value))
        before = name
    return b"".join([*pieces, b"\0"])


def _read_footer(file: BinaryIO) -> tuple[Struct, int]:
    """The footer of a file, and where it begins."""
    end = file.seek(0, 2)
    file.seek(end - 8)
    length, magic = struct.unpack("<I4s", file.read(8))
    if magic != MAGIC:
        raise InvalidInput("a part is no Parquet file", field="dataset", hint="remove it and run the export again")
    file.seek(end - 8 - length)
    return _Reader(file.read(length)).struct(), end - 8 - length


def _moved(group: Struct, by: int, ordinal: int) -> None:
    """Move the positions of a row group, which becomes number ``ordinal``."""
    targets: list[tuple[Struct, tuple[int, ...]]] = [(group, (GROUP_OFFSET,))]
    for chunk in group.get(COLUMNS).items:
        targets += [(chunk, (CHUNK_OFFSET,)), (chunk.get(META_DATA), PAGE_OFFSETS)]
        if chunk.get(OFFSET_INDEX) is not None or chunk.get(COLUMN_INDEX) is not None:
            raise InvalidInput("a part has a page index, which can't be joined", field="dataset")
    for owner, names in targets:
        for name in names:
            # A position of 0 means that there is none: the file begins with its magic number.
            if owner.get(name):
                owner.set(name, owner.get(name) + by)
    if group.get(ORDINAL) is not None:
        group.set(ORDINAL, ordinal)


def join_parquet(paths: Sequence[Path], sink: Sink) -> None:
    """Write the row groups of all files, in order, as one file.

    Args:
        paths: at least one Parquet file, all of one schema and one writer.
        sink: the output.

    Raises:
        InvalidInput: a file is no Parquet file, or has an index of pages.
    """
    sink.write(MAGIC)
    at = len(MAGIC)
    groups: list[Struct] = []
    footer = None
    n_rows = 0
    for path in paths:
        with path.open("rb") as file:
            own, end = _read_footer(file)
            for group in own.get(ROW_GROUPS).items:
                _moved(group, at - len(MAGIC), len(groups))
                groups.append(group)
            n_rows += own.get(NUM_ROWS)
            file.seek(len(MAGIC))
            for piece in _pieces(file, end - len(MAGIC)):
                sink.write(piece)
            at += end - len(MAGIC)
            footer = footer or own
    assert footer is not None, "there is at least one file"
    footer.set(NUM_ROWS, n_rows)
    footer.set(ROW_GROUPS, ListOf(STRUCT, list(groups)))
    data = _encoded(STRUCT, footer)
    sink.write(data + struct.pack("<I4s", len(data), MAGIC))


def _pieces(file: BinaryIO, n: int) -> Iterator[bytes]:
    while n > 0 and (piece := file.read(min(COPY_BYTES, n))):
        n -= len(piece)
        yield piece
