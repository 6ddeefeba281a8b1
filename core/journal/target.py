"""Where a journal's commits are copied before they are acknowledged, so that they survive the loss of its disk.

    local    nowhere: acknowledged calls survive a crash, not the loss of the disk
    shared   a folder on a shared file system: appended and synced there as well
    store    an object store (S3, GCS, Azure, ...), through fsspec: one object per group commit; a finished segment
             replaces the objects of its commits

A target holds each segment under its name, with the same bytes at the same offsets. Objects of commits are named
``{segment}.parts/{offset}``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from core.durable import check_place, sync_folder
from core.errors import InvalidInput, JournalError
from core.journal import layout

LOCAL: Final = "local"
_PARTS: Final = ".parts/"
_COPY_BYTES: Final = 32 << 20
_S3_LIMITS: Final = {"connect_timeout": 5, "read_timeout": 20, "retries": {"max_attempts": 3}}
"""Calls wait for a commit, so an unreachable store must be noticed."""


class Target(Protocol):
    """A second place for the segments of a journal. Methods raise OSError. Thread-safe for different segments."""

    address: str

    def commit(self, segment: str, offset: int, data: bytes) -> None:
        """Store bytes that follow those before ``offset``; durable when it returns."""

    def cut(self, segment: str, size: int) -> None:
        """After a failed commit: remove what it may have stored from ``size`` on. The segment gets no more commits."""

    def finish(self, segment: str, path: Path) -> None:
        """The segment gets no more commits; the file at ``path`` has its content."""

    def sizes(self) -> dict[str, int]:
        """Segments of all writers -> their bytes."""

    def read(self, segment: str, begin: int, end: int) -> bytes:
        """Bytes of a segment that ``sizes`` listed."""

    def folder_id(self) -> bytes | None:
        """The id of the journal whose segments these are; None before the first."""

    def put_folder_id(self, content: bytes) -> None:
        """Store it."""

    def probe(self, name: str) -> None:
        """Store and remove a small file."""


def open_target(address: str, options: Mapping[str, Any] | None = None) -> Target | None:
    """The target at an address; None for ``local``.

    Args:
        address: ``local``, an absolute folder, or a URL that fsspec knows, such as ``s3://bucket/path``.
        options: arguments of fsspec's file system, for instance ``{"endpoint_url": ...}``.

    Raises:
        InvalidInput: there is no such target, or its package is missing.
    """
    if address == LOCAL:
        return None
    if "://" not in address:
        if not Path(address).is_absolute():
            raise InvalidInput(
                f"{address!r} is no journal target",
                field="journal_target",
                hint="local, the absolute path of a shared folder, or a URL such as s3://bucket/path",
            )
        return SharedFolder(Path(address))
    if address.startswith("file:"):
        raise InvalidInput(
            f"{address!r} is a folder", field="journal_target", hint="give its absolute path without file://"
        )
    return ObjectStore(address, options or {})


def incarnation(writer: str) -> str:
    """A writer's name that no other process has, before or after: several machines write to one target."""
    return f"{writer}.{secrets.token_hex(5)}"


def join(target: Target, directory: Path) -> None:
    """Make the target and the journal's folder parts of one journal, with one id.

    Raises:
        JournalError: the target can't be reached, or has the segments of another journal.
    """
    with _named(target):
        stored = target.folder_id()
        directory.mkdir(parents=True, exist_ok=True)
        own = layout.folder_id(directory)
        if stored is not None and own is None:
            (directory / layout.FOLDER_FILE).write_bytes(layout.packed_id(stored))
            return
        if stored is None:
            target.put_folder_id(layout.packed_id(own or layout.make_folder_id(directory)))
            return
    if stored != own:
        raise JournalError(
            f"{target.address} has the segments of another journal than {directory}",
            field="journal_target",
            hint="give each data folder a target of its own",
        )


def fetch_missing(target: Target, directory: Path) -> int:
    """Copy segments of the target that the folder lacks, for instance because its disk was lost; returns their bytes.

    A segment appears under its name when it is complete and synced. Segments that exist are not changed.

    Raises:
        JournalError: as ``join``, or the folder can't be written.
    """
    join(target, directory)
    n_bytes = 0
    with _named(target):
        for segment, size in sorted(target.sizes().items()):
            path = directory / segment
            if path.exists():
                continue
            temporary = directory / f".{segment}.fetched"
            with temporary.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                for begin in range(0, size, _COPY_BYTES):
                    file.write(target.read(segment, begin, min(begin + _COPY_BYTES, size)))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            n_bytes += size
        if n_bytes:
            sync_folder(directory)
    return n_bytes


class SharedFolder:
    """A folder on a shared file system."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder)
        self._folder = folder
        self._open: dict[str, int] = {}

    def commit(self, segment: str, offset: int, data: bytes) -> None:
        """See ``Target``."""
        path = self._folder / segment
        fd = self._open.get(segment)
        if fd is None:
            fd = self._open[segment] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            sync_folder(self._folder)
        view = memoryview(data)
        while view:
            n = os.pwrite(fd, view, offset)
            view, offset = view[n:], offset + n
        getattr(os, "fdatasync", os.fsync)(fd)
        check_place(fd, path)

    def cut(self, segment: str, size: int) -> None:
        """See ``Target``."""
        fd = self._open.pop(segment, None)
        if fd is None:
            return
        try:
            os.ftruncate(fd, size)
            if size == 0:
                (self._folder / segment).unlink(missing_ok=True)
        finally:
            os.close(fd)

    def finish(self, segment: str, path: Path) -> None:
        """See ``Target``."""
        fd = self._open.pop(segment, None)
        if fd is not None:
            os.close(fd)

    def sizes(self) -> dict[str, int]:
        """See ``Target``."""
        return {name: (self._folder / name).stat().st_size for name in layout.segments(self._folder)}

    def read(self, segment: str, begin: int, end: int) -> bytes:
        """See ``Target``."""
        with (self._folder / segment).open("rb") as file:
            file.seek(begin)
            return _all(file.read(end - begin), end - begin, segment)

    def folder_id(self) -> bytes | None:
        """See ``Target``."""
        self._folder.stat()
        return layout.folder_id(self._folder)

    def put_folder_id(self, content: bytes) -> None:
        """See ``Target``."""
        temporary = self._folder / f".{layout.FOLDER_FILE}.{secrets.token_hex(4)}"
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._folder / layout.FOLDER_FILE)
        sync_folder(self._folder)

    def probe(self, name: str) -> None:
        """See ``Target``."""
        path = self._folder / f".{name}.probe"
        with path.open("wb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
        path.unlink()


class ObjectStore:
    """A prefix of an object store. An object is complete or absent, and durable when its upload is confirmed."""

    def __init__(self, address: str, options: Mapping[str, Any]) -> None:
        import fsspec

        self.address = address
        limits = {"config_kwargs": _S3_LIMITS} if address.startswith(("s3://", "s3a://")) else {}
        try:
            self._fs, root = fsspec.core.url_to_fs(
                address, use_listings_cache=False, skip_instance_cache=True, **{**limits, **options}
            )
        except (ImportError, ValueError) as error:
            raise InvalidInput(
                f"{address} can't be used: {error}", field="journal_target", hint="pip install 'claw-studio[store]'"
            ) from error
        self._root = str(root).rstrip("/")
        self._lock = threading.Lock()
        self._parts: dict[str, dict[int, int]] = {}
        """Segment -> offset -> bytes of the objects of its commits, as last listed."""

    def commit(self, segment: str, offset: int, data: bytes) -> None:
        """See ``Target``."""
        self._try(self._fs.pipe_file, self._part(segment, offset), data)

    def cut(self, segment: str, size: int) -> None:
        """See ``Target``."""
        for offset in self._list_parts(segment):
            if offset >= size:
                self._try(self._fs.rm_file, self._part(segment, offset))

    def finish(self, segment: str, path: Path) -> None:
        """See ``Target``."""
        self._try(self._fs.put_file, str(path), f"{self._root}/{segment}")
        for offset in self._list_parts(segment):
            self._try(self._fs.rm_file, self._part(segment, offset))

    def sizes(self) -> dict[str, int]:
        """See ``Target``."""
        sizes: dict[str, int] = {}
        parts: dict[str, dict[int, int]] = {}
        for path, n_bytes in self._list(self._root).items():
            segment, separator, part = path.removeprefix(self._root + "/").partition(_PARTS)
            if not layout.is_segment_name(segment):
                continue
            if not separator:
                sizes[segment] = n_bytes
            elif part.isdecimal():
                parts.setdefault(segment, {})[int(part)] = n_bytes
        parts = {segment: by_offset for segment, by_offset in parts.items() if segment not in sizes}
        for segment, by_offset in parts.items():
            end = 0
            for offset, n_bytes in sorted(by_offset.items()):
                if offset != end:
                    break
                end += n_bytes
            if end:
                sizes[segment] = end
        with self._lock:
            self._parts = parts
        return sizes

    def read(self, segment: str, begin: int, end: int) -> bytes:
        """See ``Target``."""
        try:
            data = self._read(segment, begin, end)
        except FileNotFoundError:
            # The segment was finished since it was listed.
            self.sizes()
            data = self._read(segment, begin, end)
        return _all(data, end - begin, segment)

    def _read(self, segment: str, begin: int, end: int) -> bytes:
        with self._lock:
            parts = sorted(self._parts.get(segment, {}).items())
        if not parts:
            return bytes(self._try(self._fs.cat_file, f"{self._root}/{segment}", start=begin, end=end))
        pieces = []
        for offset, n_bytes in parts:
            first, last = max(begin, offset), min(end, offset + n_bytes)
            if first < last:
                whole = self._try(self._fs.cat_file, self._part(segment, offset))
                pieces.append(whole[first - offset : last - offset])
        return b"".join(pieces)

    def folder_id(self) -> bytes | None:
        """See ``Target``."""
        try:
            return layout.unpacked_id(self._try(self._fs.cat_file, f"{self._root}/{layout.FOLDER_FILE}"))
        except FileNotFoundError:
            return None

    def put_folder_id(self, content: bytes) -> None:
        """See ``Target``."""
        self._try(self._fs.pipe_file, f"{self._root}/{layout.FOLDER_FILE}", content)

    def probe(self, name: str) -> None:
        """See ``Target``."""
        path = f"{self._root}/.{name}.probe"
        self._try(self._fs.pipe_file, path, bytes(16))
        self._try(self._fs.rm_file, path)

    def _part(self, segment: str, offset: int) -> str:
        return f"{self._root}/{segment}{_PARTS}{offset:016d}"

    def _list_parts(self, segment: str) -> list[int]:
        folder = f"{self._root}/{segment}{_PARTS}"
        names = (path.rpartition("/")[2] for path in self._list(folder.rstrip("/")))
        return [int(name) for name in names if name.isdecimal()]

    def _list(self, folder: str) -> dict[str, int]:
        """Objects below a folder -> their bytes."""
        try:
            listed = self._try(self._fs.find, folder, detail=True)
        except FileNotFoundError:
            return {}
        return {str(path): int(info["size"]) for path, info in listed.items()}

    def _try(self, action: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """OSError with the store's address for anything that its library raises."""
        try:
            return action(*arguments, **named)
        except FileNotFoundError:
            raise
        except Exception as error:
            raise OSError(errno.EIO, f"{self.address}: {error or type(error).__name__}") from error


def _all(data: bytes, n_bytes: int, segment: str) -> bytes:
    if len(data) != n_bytes:
        raise OSError(errno.EIO, f"{len(data)} bytes of {segment} instead of {n_bytes}")
    return data


@contextlib.contextmanager
def _named(target: Target) -> Iterator[None]:
    """JournalError with the target's address for an OSError."""
    try:
        yield
    except OSError as error:
        raise JournalError(
            f"the journal's target {target.address} can't be used: {error.strerror or error}",
            field="journal_target",
            hint="make it reachable and writable, or set another journal_target",
        ) from error
