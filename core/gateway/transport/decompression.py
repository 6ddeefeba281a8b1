"""Decompresses bodies in pieces of bounded size, because a small body may expand to a huge one."""

from __future__ import annotations

import zlib
from typing import Any, Final

_AT_ONCE: Final = 1 << 20
_ENCODINGS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""``Content-Encoding`` -> zlib's window bits. None is requested, but some proxies compress anyway."""


def inflater(encoding: str) -> Inflater | None:
    """A decompressor for a ``Content-Encoding``; None for an unknown one."""
    bits = _ENCODINGS.get(encoding.strip().lower())
    return Inflater(encoding, bits) if bits is not None else None


class Inflater:
    """Decompresses one body.

    Args:
        encoding: its name.
        bits: zlib's window bits.
    """

    def __init__(self, encoding: str, bits: int) -> None:
        self._encoding = encoding
        self._decoder: Any = zlib.decompressobj(bits)
        self._begun = False

    @property
    def pending_input(self) -> bytes:
        """Input that is not decompressed yet; pass it to ``inflate`` again."""
        tail: bytes = self._decoder.unconsumed_tail
        return tail

    def inflate(self, piece: bytes) -> bytes:
        """At most a mebibyte; empty if more input is needed. ValueError: invalid data."""
        self._begun = True
        try:
            plain: bytes = self._decoder.decompress(piece, _AT_ONCE)
        except zlib.error as error:
            raise ValueError(f"the body is not {self._encoding}: {error}") from error
        if self._decoder.unused_data or (self._decoder.eof and not plain):
            raise ValueError(f"the body continues after the end of its {self._encoding} data")
        return plain

    def end(self) -> None:
        """The body has ended. ValueError if the compressed data is incomplete."""
        if self._begun and not self._decoder.eof:
            raise ValueError("the compressed body ends in the middle")
