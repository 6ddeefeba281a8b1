"""Bodies that came compressed: decompressed a bounded piece at a time, for a small one may stand for a huge one."""

from __future__ import annotations

import zlib
from typing import Any, Final

_AT_ONCE: Final = 1 << 20
_ENCODINGS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 47}
"""``Content-Encoding`` -> zlib's window bits; nothing of it is asked for, and some proxies do it all the same."""


def inflater(encoding: str) -> Inflater | None:
    """For a ``Content-Encoding``; None for one that is not known."""
    bits = _ENCODINGS.get(encoding.strip().lower())
    return Inflater(encoding, bits) if bits is not None else None


class Inflater:
    """One body.

    Args:
        encoding: as it is called.
        bits: zlib's window bits.
    """

    def __init__(self, encoding: str, bits: int) -> None:
        self._encoding = encoding
        self._decoder: Any = zlib.decompressobj(bits)
        self._begun = False

    @property
    def waiting(self) -> bytes:
        """What was given and is not decompressed yet; it is to be given again."""
        tail: bytes = self._decoder.unconsumed_tail
        return tail

    def inflate(self, piece: bytes) -> bytes:
        """At most a mebibyte; empty where more of the body is needed. ValueError: it is not compressed like this."""
        self._begun = True
        try:
            plain: bytes = self._decoder.decompress(piece, _AT_ONCE)
        except zlib.error as error:
            raise ValueError(f"the body is not {self._encoding}: {error}") from error
        if self._decoder.unused_data or (self._decoder.eof and not plain):
            raise ValueError(f"the body goes on behind the end of what is {self._encoding}")
        return plain

    def end(self) -> None:
        """The body is over. ValueError where that is in the middle of it."""
        if self._begun and not self._decoder.eof:
            raise ValueError("the compressed body ends in the middle")
