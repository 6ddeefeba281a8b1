"""Memory and size limits for imported files, which are untrusted.

Archives are checked before they are unpacked. Pickles are read by torch's weights-only loader, which creates only
numbers, texts, lists and tensors, and runs no code.
"""

from __future__ import annotations

import pickle
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from core.errors import InvalidInput
from core.imports.base import Problem, ReadResult

MAX_MEMBERS = 100_000
MAX_UNPACKED = 8 << 30
MAX_RATIO = 200
"""Largest compression ratio of archive members over 1 MiB."""
MAX_LINE = 256 << 20
"""Largest line, JSON value or table cell, bytes."""
MAX_BATCH = 1 << 30
"""Largest batch of Parquet rows, bytes."""

UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    pickle.PickleError,
    sqlite3.Error,
    pa.ArrowException,
)
"""Exceptions that readers of JSON, gzip, zip, pickle, Parquet and SQLite raise for malformed files."""


def bounded(path: Path, results: Iterator[ReadResult]) -> Iterator[ReadResult]:
    """Pass results on; if the file can't be read further, yield a Problem after the last record and stop."""
    where = path.name
    while True:
        try:
            item = next(results, None)
        except InvalidInput as error:
            yield Problem(_behind(path, where), error.field, error.message)
            return
        except UNREADABLE as error:
            yield Problem(_behind(path, where), None, f"can't be read: {_error_text(error)}")
            return
        if item is None:
            return
        where = item.where
        yield item


def _behind(path: Path, where: str) -> str:
    return path.name if where == path.name else f"{path.name} (behind {where})"


def _error_text(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"


def load_torch(path: Path) -> Any:
    """Load a ``.pt`` file with the weights-only loader.

    Raises:
        InvalidInput: the file is missing, too large when unpacked, has a path outside its folder, or would run code.
    """
    check_archive(path)
    import torch

    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except UNREADABLE as error:
        raise InvalidInput(f"{path.name} can't be read as a .pt file: {_error_text(error)}", field="path") from error


def check_archive(path: Path) -> None:
    """Raise InvalidInput unless this is a zip file within the limits, without members outside its folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except UNREADABLE as error:
        raise InvalidInput(f"{path.name} is not a zip file: {_error_text(error)}", field="path") from error
    if len(members) > MAX_MEMBERS:
        raise InvalidInput(f"{path.name} has more than {MAX_MEMBERS} members", field="path")
    if sum(member.file_size for member in members) > MAX_UNPACKED:
        raise InvalidInput(f"{path.name} has more than {MAX_UNPACKED >> 30} GiB unpacked", field="path")
    for member in members:
        name = PurePosixPath(member.filename.replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts:
            raise InvalidInput(f"{path.name}: the member {member.filename!r} is outside its folder", field="path")
        if member.file_size > max(1 << 20, MAX_RATIO * member.compress_size):
            raise InvalidInput(
                f"{path.name}: {member.filename!r} is compressed by more than {MAX_RATIO} to 1", field="path"
            )
