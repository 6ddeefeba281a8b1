"""Reads the journal: valid records in their writers' order; anything else is reported as damage.

A reader may run while writers write. An incomplete record at the end of a writer's newest segment is still being
written; elsewhere it is damage. After damage, reading continues with the next valid record.
"""

from __future__ import annotations

import hmac
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, NamedTuple

from core.errors import JournalError
from core.journal import layout
from core.journal.layout import number_of, writer_of
from core.journal.lock import is_held
from core.journal.salvage import Damage, RecordPlace, damage_between, find_salt, places, places_1
from core.journal.writer import sign

_READ_BUFFER = 1 << 20
_NEAR_BYTES = 64 << 10
_MARK = re.compile(r"^(?P<mark>.+\.\d+\.\d+)\.(?P<signature>[0-9a-f]{16})$")


class Record(NamedTuple):
    """One record: its segment, its first byte, the byte after it, and its payload.

    Offsets are those assigned by the writer, independent of later changes to the file.
    """

    segment: str
    offset: int
    next_offset: int
    payload: bytes


class Gap(NamedTuple):
    """Removed records: the first byte of the first and the byte after the last, at their original offsets."""

    segment: str
    offset: int
    next_offset: int


JournalItem = Record | Damage | Gap


class JournalReader:
    """Reads a folder repeatedly, and skips segments that are read to their end. For one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._dir = directory
        self._place: tuple[int, int] | None = None
        self._folder: bytes | None = None
        self._finished: dict[str, int] = {}
        self._idle: dict[str, tuple[int, int]] = {}
        self._whole: dict[str, int] = {}

    def read(self, after: Mapping[str, int]) -> list[Iterator[JournalItem]]:
        """The items past the given positions, one iterator per writer.

        Args:
            after: segment name -> ``next_offset`` of the last item that was read; absent means unread.

        Raises:
            JournalError: as ``check_place``.
        """
        self.check_place()
        by_writer: dict[str, list[str]] = {}
        for name in layout.segments(self._dir):
            by_writer.setdefault(writer_of(name), []).append(name)
        if self._folder is None and by_writer:
            self._folder = layout.folder_id(self._dir)
        return [self._writer(names, after) for names in by_writer.values()]

    def check_place(self) -> None:
        """JournalError if the folder was removed or replaced since the first read.

        Another folder's segments may have the names of this one's, whose positions must not move meanwhile.
        """
        try:
            status = self._dir.stat()
        except FileNotFoundError:
            place = None
        else:
            place = status.st_dev, status.st_ino
        self._place = self._place or place
        if place != self._place:
            raise JournalError(
                f"the folder {self._dir} was removed or replaced while the studio uses it",
                hint="put it back; reading then continues by itself",
            )

    def _writer(self, names: list[str], after: Mapping[str, int]) -> Iterator[JournalItem]:
        for name, following in zip(names, [*names[1:], None], strict=True):
            offset = after.get(name, 0)
            if offset >= self._finished.get(name, offset + 1):
                continue
            if offset == 0:
                yield from self._missing(name, names, after)
            yield from self._segment(name, following, offset)

    def _missing(self, name: str, names: list[str], after: Mapping[str, int]) -> Iterator[Damage]:
        """The damage if the writer's segment before this one is missing and was not read to its end."""
        number, end = self._previous_segment_end(name)
        if not number:
            return
        before = layout.segment_name(writer_of(name), number)
        read = after.get(before, 0)
        if before not in names and read < end:
            yield Damage(before, read, end, 0, 0, f"the segment is gone, {end - read} bytes of it unread")

    def _previous_segment_end(self, name: str) -> tuple[int, int]:
        """Number and end of the writer's previous segment by a segment's header; (0, 0) if unknown."""
        head = layout.read_head(self._dir / name)
        return (0, 0) if head is None or _refusal(head, name, self._folder) else head.before

    def _segment(self, name: str, following: str | None, offset: int) -> Iterator[JournalItem]:
        path = self._dir / name
        sealed, end = following is not None, None
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            # A segment whose first batch failed may be removed between listing and opening.
            return
        if following is not None:
            number, expected_end = self._previous_segment_end(following)
            end = expected_end if number == number_of(name) else None
        elif self._idle.get(name) == (size, offset):
            # The bytes after the last whole record are unchanged, and remain so if there is no writer.
            if self._ends_whole(path, size, offset) or is_held(self._dir, writer_of(name)):
                return
            sealed = True
        last = offset
        if end is None or offset < end:
            for item in read_all(path, offset, sealed=sealed, end=end, folder=self._folder):
                last = item.next_offset
                yield item
        if sealed:
            self._finished[name] = last
            self._idle.pop(name, None)
        else:
            self._idle[name] = size, last

    def _ends_whole(self, path: Path, size: int, offset: int) -> bool:
        """Whether the file ends with the record that ends at ``offset``, and its mark is valid; looks once per size."""
        if size != offset:
            return False
        if self._whole.get(path.name) != size:
            end = layout.pack_end(offset, layout.key_of(path.name))
            try:
                with path.open("rb") as file:
                    file.seek(max(size - len(end), 0))
                    if offset > layout.head_bytes(path.name) and file.read(len(end)) != end:
                        return False
            except FileNotFoundError:
                return True
            self._whole[path.name] = size
        return True


def read_all(
    path: Path, offset: int, *, sealed: bool, end: int | None = None, folder: bytes | None = None
) -> Iterator[JournalItem]:
    """Everything in one segment from a record's offset on.

    Args:
        sealed: no writer appends to it any more, so an unfinished record is damage.
        end: the segment's end according to its writer; None if unknown.
        folder: id of the folder that it must belong to; None accepts any.
    """
    try:
        file = path.open("rb", buffering=_READ_BUFFER)
    except FileNotFoundError:
        return
    name = path.name
    with file:
        n_head = layout.head_bytes(name)
        # The head of a copy under another name may be longer.
        start = file.read(n_head + 4096)
        head = layout.unpack_head(start)
        refusal = _refusal(head, name, folder)
        salt = layout.unpack_salt(start) or find_salt(file, name)
        if refusal is None and salt is None and (start.startswith(layout.MAGIC_1) or any(places_1(file, 0))):
            yield from _version_1(file, name, offset)
            return
        if refusal is not None or salt is None:
            size = path.stat().st_size
            if size > offset and (sealed or refusal is not None):
                yield Damage(name, offset, max(size, n_head), 0, size, refusal or "it is no segment")
            return
        begin, at = (0 if head is None else n_head), n_head
        if offset > n_head and (resumed := _seek(file, salt, layout.key_of(name), offset)) is not None:
            begin, at = resumed, offset
        yield from _walk(file, name, salt, begin, at, offset, sealed=sealed, end=end)


def _refusal(head: layout.Head | None, name: str, folder: bytes | None) -> str | None:
    if head is not None and head.name != name:
        return f"it is a copy of {head.name}"
    if head is not None and folder is not None and head.folder != folder:
        return "it belongs to another journal"
    return None


def _seek(file: IO[bytes], salt: bytes, key: int, offset: int) -> int | None:
    """Position in the file of the writer's ``offset``: at it if a record ends there, or close to it; else None."""
    end = layout.pack_end(offset, key)
    file.seek(offset - len(end))
    if file.read(len(end)) == end:
        return offset
    begin = max(offset - _NEAR_BYTES, 0)
    file.seek(begin)
    near = file.read(2 * _NEAR_BYTES)
    at = near.find(salt)
    while at >= 0:
        frame = layout.unpack_frame(near[at : at + layout.RECORD_BYTES], salt, key)
        if frame is not None and frame.offset == offset:
            return begin + at
        at = near.find(salt, at + 1)
    return None


def _walk(
    file: IO[bytes], name: str, salt: bytes, begin: int, at: int, offset: int, *, sealed: bool, end: int | None
) -> Iterator[JournalItem]:
    """Consecutive records while each is at its expected position; after that, salvaged records and damage.

    Args:
        begin: the first byte of the file to look at.
        at: the writer's offset of the record that should be there.
        offset: everything before it has been read.
    """
    key = layout.key_of(name)
    file.seek(begin)
    while True:
        header = file.read(layout.RECORD_BYTES)
        frame = layout.unpack_frame(header, salt, key)
        if frame is None or frame.offset != at:
            break
        payload = file.read(frame.length)
        ending = file.read(layout.END_BYTES)
        if len(ending) < layout.END_BYTES and not sealed:
            return
        if zlib.crc32(payload) != frame.crc:
            break
        next_at = frame.next_offset(payload)
        if ending != layout.pack_end(next_at, key):
            break
        begin, at = begin + layout.FRAME_BYTES + frame.length, next_at
        if frame.gap and at > offset:
            yield Gap(name, frame.offset, at)
        elif not frame.gap and frame.offset >= offset:
            yield Record(name, frame.offset, at, payload)
    if not header and (not sealed or end is None or at >= end):
        return
    yield from _salvaged(file, name, places(file, salt, key, begin, at), begin, at, offset, sealed=sealed, end=end)


def _version_1(file: IO[bytes], name: str, offset: int) -> Iterator[JournalItem]:
    file.seek(0)
    whole_head = file.read(len(layout.MAGIC_1)) == layout.MAGIC_1
    begin = offset or (len(layout.MAGIC_1) if whole_head else 0)
    yield from _salvaged(file, name, places_1(file, begin), begin, begin, offset, sealed=True, end=None)


def _salvaged(
    file: IO[bytes],
    name: str,
    good: Iterable[RecordPlace],
    begin: int,
    at: int,
    offset: int,
    *,
    sealed: bool,
    end: int | None,
) -> Iterator[JournalItem]:
    """Whole records in their writer's order, with the damages between them."""
    for place in good:
        if place.offset >= offset or (place.gap and place.next_offset > offset):
            if (damage := damage_between(name, at, place.offset, begin, place.begin)) is not None:
                yield damage
            file.seek(place.payload_begin)
            if place.gap:
                yield Gap(name, place.offset, place.next_offset)
            else:
                yield Record(name, place.offset, place.next_offset, file.read(place.n_bytes))
        begin, at = place.end, place.next_offset
    if not sealed:
        return
    n_bad = max(file.seek(0, os.SEEK_END) - begin, 0)
    stop = max(end or 0, at + n_bad)
    if stop > max(at, offset):
        yield from filter(None, [damage_between(name, at, stop, begin, begin + n_bad)])


def read_records(directory: Path, after: Mapping[str, int]) -> Iterator[Record]:
    """Every whole record past the given positions, segment by segment in order of their names.

    It may run while writers write: an incomplete record ends the reading of its writer, and a later call with the new
    positions finds it.

    Args:
        directory: folder of the segments; an absent one is empty.
        after: segment name -> offset of the first unread byte (``Record.next_offset``); absent means unread.
    """
    for item in chain.from_iterable(JournalReader(directory).read(after)):
        if isinstance(item, Record):
            yield item


def damages(directory: Path) -> Iterator[Damage]:
    """All damages in the journal, missing segments included; reads all of it."""
    for item in chain.from_iterable(JournalReader(directory).read({})):
        if isinstance(item, Damage):
            yield item


def read_since_mark(directory: Path, marked: str, uid: str) -> Iterator[Record]:
    """The valid records of one writer from a ``Journal.mark_for(uid)`` on; none if the signature is wrong."""
    match = _MARK.match(marked)
    folder = layout.folder_id(directory) if match is not None else None
    if match is None or folder is None:
        return
    if hmac.compare_digest(sign(folder, match["mark"], uid), match["signature"]):
        yield from read_after(directory, match["mark"])


def read_after(directory: Path, mark: str) -> Iterator[Record]:
    """Read the valid records of one writer from a mark on. An invalid mark reads nothing."""
    rest, _, offset = mark.rpartition(".")
    writer, _, number = rest.rpartition(".")
    if not (number.isdecimal() and offset.isdecimal()):
        return
    for name in layout.segments(directory):
        if writer_of(name) == writer and number_of(name) >= int(number):
            first = number_of(name) == int(number)
            yield from read_segment(directory, name, int(offset) if first else 0)


def read_segment(directory: Path, segment: str, offset: int) -> Iterator[Record]:
    """The whole records of one segment from an offset on."""
    if layout.is_segment_name(segment):
        for item in read_all(directory / segment, offset, sealed=False):
            if isinstance(item, Record):
                yield item


def cut_unfinished(copy: Path, offset: int) -> None:
    """Truncate a copied segment after its last whole record: the writer may have been appending during the copy.

    A damaged segment stays as it is. OSError when that fails.

    Args:
        copy: under its segment's name, without a writer.
        offset: a record's end, up to which it is known to be whole; 0 where that is not known.
    """
    end, name = max(offset, layout.head_bytes(copy.name)), copy.name
    for item in read_all(copy, offset, sealed=False):
        if isinstance(item, Damage):
            return
        end = item.next_offset
    with copy.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size < layout.head_bytes(name):
            end = 0
        elif size > end > layout.head_bytes(name):
            ending = layout.pack_end(end, layout.key_of(name))
            file.seek(end - len(ending))
            if file.read(len(ending)) != ending:
                return
        if size > end:
            file.truncate(end)
            os.fsync(file.fileno())
    if not end:
        copy.unlink()


def journal_bytes(directory: Path) -> int:
    """Bytes of all segments of all writers in the folder."""
    total = 0
    for name in layout.segments(directory):
        # A segment whose first batch failed is removed.
        try:
            total += (directory / name).stat().st_size
        except FileNotFoundError:
            continue
    return total
