"""The container of ``torch.save``, streamed: a zip archive of stored records, a pickle and the tensors' storages.

Each record begins at a multiple of 64 bytes, so that ``torch.load(mmap=True)`` can map it. Sizes follow a record and
are in the directory, in 64 bits, so a record can be streamed and have any size. The same records give the same bytes.
"""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from collections.abc import Iterable
from typing import Any

from core.export.sink import Piece, Sink

ALIGNMENT = 64
_STREAMED = 1 << 3
"""Flag of a record whose sizes follow it."""
_ZIP64 = 45
"""Version of zip that a reader must know."""
_IN_64_BITS, _IN_64_BITS_SHORT = 0xFFFFFFFF, 0xFFFF
_PADDING = 0x4246
"""Extra field that PyTorch pads with."""
_JAN_1980 = 0x21


class TorchFile:
    """Writes the records."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._directory: list[bytes] = []

    def record(self, name: str, pieces: Iterable[Piece]) -> None:
        """Append a record, a piece at a time."""
        path, begin = f"archive/{name}".encode(), self._sink.n_bytes
        sizes = struct.pack("<HHQQ", 1, 16, 0, 0)
        data_at = begin + 30 + len(path) + len(sizes) + 4
        padding = -data_at % ALIGNMENT
        extra = sizes + struct.pack("<HH", _PADDING, padding) + bytes(padding)
        common = struct.pack("<HHHH", _STREAMED, 0, 0, _JAN_1980)
        self._sink.write(
            b"PK\x03\x04"
            + struct.pack("<H", _ZIP64)
            + common
            + struct.pack("<IIIHH", 0, _IN_64_BITS, _IN_64_BITS, len(path), len(extra))
            + path
            + extra
        )
        crc, n = 0, self._sink.n_bytes
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
            self._sink.write(piece)
        n = self._sink.n_bytes - n
        self._sink.write(b"PK\x07\x08" + struct.pack("<IQQ", crc, n, n))
        self._directory.append(
            b"PK\x01\x02"
            + struct.pack("<HH", _ZIP64, _ZIP64)
            + common
            + struct.pack("<III", crc, _IN_64_BITS, _IN_64_BITS)
            + struct.pack("<HHHHHII", len(path), 28, 0, 0, 0, 0, _IN_64_BITS)
            + path
            + struct.pack("<HHQQQ", 1, 24, n, n, begin)
        )

    def finish(self) -> None:
        """Append the records that readers of this container require, and the directory."""
        for name, value in (
            (".format_version", b"1"),
            (".storage_alignment", b"%d" % ALIGNMENT),
            ("byteorder", b"little"),
            ("version", b"3\n"),
        ):
            self.record(name, [value])
        begin, n = self._sink.n_bytes, len(self._directory)
        for entry in self._directory:
            self._sink.write(entry)
        end = self._sink.n_bytes
        self._sink.write(
            b"PK\x06\x06"
            + struct.pack("<QHHIIQQQQ", 44, _ZIP64, _ZIP64, 0, 0, n, n, end - begin, begin)
            + b"PK\x06\x07"
            + struct.pack("<IQI", 0, end, 1)
            + b"PK\x05\x06"
            + struct.pack("<HHHHIIH", 0, 0, *(_IN_64_BITS_SHORT,) * 2, *(_IN_64_BITS,) * 2, 0)
        )


def pickled(value: Any, protocol: int = 2) -> bytes:
    """Opcodes that push a small value, without references to what was pickled before; protocol 2 or 3."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=protocol)
    pickler.fast = True
    pickler.dump(value)
    return file.getvalue()[len(b"\x80\x02") : -len(b".")]


class Tensors:
    """Tensors of a file, each with its own storage, and the opcodes that make them when the file is loaded."""

    def __init__(self, file: TorchFile) -> None:
        self._file = file
        self._n = 0
        self._places: dict[bytes, int] = {}

    def add(self, dtype: str, shape: tuple[int, ...], pieces: Iterable[Piece]) -> bytes:
        """Store a contiguous CPU tensor and return its opcodes.

        Args:
            dtype: start of its storage's name in torch: Int, Float, Bool.
            shape: sizes.
            pieces: its elements, little-endian.
        """
        key, self._n = str(self._n), self._n + 1
        self._file.record(f"data/{key}", pieces)
        n, strides = 1, []
        for size in reversed(shape):
            strides.append(n)
            n *= size
        storage = (
            pickle.MARK
            + pickled("storage")
            + self._named(f"torch\n{dtype}Storage")
            + pickled(key)
            + pickled("cpu")
            + pickled(n)
            + pickle.TUPLE
            + pickle.BINPERSID
        )
        # torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, backward_hooks)
        return (
            self._named("torch._utils\n_rebuild_tensor_v2")
            + pickle.MARK
            + storage
            + pickled((0, shape, tuple(reversed(strides)), False))[len(pickle.MARK) : -len(pickle.TUPLE)]
            + self._named("collections\nOrderedDict")
            + pickle.EMPTY_TUPLE
            + pickle.REDUCE
            + pickle.TUPLE
            + pickle.REDUCE
        )

    def _named(self, name: str) -> bytes:
        """Pushes a class or function; all but the first time from the pickle's memo."""
        code = pickle.GLOBAL + name.encode() + b"\n"
        if code in self._places:
            return pickle.BINGET + bytes([self._places[code]])
        self._places[code] = len(self._places)
        return code + pickle.BINPUT + bytes([self._places[code]])
