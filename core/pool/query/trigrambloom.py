"""Bloom filters over the trigrams of messages: which messages may contain a text, in a tenth of their own size.

All bodies are concatenated to a stream of bytes, cut into windows. A window has a bit for the hash of each of its byte
trigrams (a Bloom filter with one hash). A text can occur only in windows that have the bits of all its trigrams: some
thousandths of the windows for a rare word. These messages are then read and matched.

A text that begins in a window may end in the next one. A window therefore also has the trigrams that begin in the first
``OVERLAP`` bytes after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

WINDOW = 1 << 13
"""Bytes of a window."""
BITS = 6144
"""Bits of a window's filter: ordinary text sets a quarter of them."""
OVERLAP = 128
MAX_SEARCHED = OVERLAP + 3
"""Bytes of a searched text whose trigrams are used."""

_THREE_BYTES = np.uint32(0xFFFFFF)
_HASH_FACTOR = np.uint32(0x9E3779B1)
_HALF_WIDTH = np.uint32(16)
_FOLDED = (("ſ", "s"), ("\u212a", "k"))
"""The non-ASCII letters that equal an ASCII letter when case is ignored: the long s and the Kelvin sign."""


@dataclass(frozen=True, slots=True)
class TrigramBloom:
    """The filters of consecutive messages.

    Attributes:
        bits: uint8 ``[BITS, windows / 8]``: for each hash, which windows have it. The number of windows is a multiple
            of 8, so that filters can be put side by side; windows after the end of the messages have no bits.
        firsts: int64 ``[windows + 1]``: the message in which each window begins; at the end the last message.
        last: the greatest ``message_id``.
    """

    bits: np.ndarray
    firsts: np.ndarray
    last: int

    @classmethod
    def of(cls, message_ids: np.ndarray, bodies: pa.ChunkedArray) -> TrigramBloom:
        """The filters of at least one message, ids ascending; the bodies are less than 2 GiB together."""
        one = bodies.combine_chunks()
        stream = _stream(one)
        if _is_folded(stream):
            for letter, plain in _FOLDED:
                one = pc.replace_substring(one, letter, plain)
            stream = _stream(one)
        n_windows = max(1, -(-stream.size // WINDOW))
        n_windows += -n_windows % 8
        hashes = _hashes(stream, n_windows * WINDOW).reshape(n_windows, WINDOW)
        has = np.zeros((n_windows, BITS), bool)
        window = np.arange(n_windows, dtype=np.int64)[:, None] * BITS
        flat = has.reshape(-1)
        flat[window + hashes] = True
        flat[window[:-1] + hashes[1:, :OVERLAP]] = True
        begins = _offsets(one) - _offsets(one)[0]
        at = np.searchsorted(begins, np.arange(n_windows) * WINDOW, side="right") - 1
        firsts = np.append(message_ids[np.minimum(at, message_ids.size - 1)], message_ids[-1])
        return cls(np.packbits(np.ascontiguousarray(has.T), axis=1), firsts, int(message_ids[-1]))

    def windows(self, wanted: np.ndarray) -> np.ndarray:
        """Windows in which a text with these hashes may begin."""
        all_set = np.bitwise_and.reduce(self.bits[wanted], axis=0)
        return np.flatnonzero(np.unpackbits(all_set, count=self.firsts.size - 1))

    @property
    def n_bytes(self) -> int:
        """Memory, bytes."""
        return int(self.bits.nbytes + self.firsts.nbytes)


def hashes_of(text: str) -> np.ndarray:
    """Hashes that a window must have for a text to begin in it, ignoring case; empty: no trigram is usable."""
    stream, certain = bytearray(), bytearray()
    for letter in text:
        spelled = letter.encode("utf-8")
        # A non-ASCII letter may occur in another case, with other bytes: its trigrams are not used.
        same = len(spelled) == 1 or letter.lower() == letter == letter.upper()
        stream += spelled
        certain += bytes([same]) * len(spelled)
    n = min(len(stream), MAX_SEARCHED) - 2
    if n <= 0:
        return np.zeros(0, np.int64)
    hashes = _hashes(np.frombuffer(bytes(stream), np.uint8), -(-len(stream) // 4) * 4)[:n]
    sure = np.frombuffer(bytes(certain), bool)
    kept = sure[:n] & sure[1 : n + 1] & sure[2 : n + 2]
    return np.unique(hashes[kept].astype(np.int64))


def _hashes(stream: np.ndarray, n: int) -> np.ndarray:
    """uint32 ``[n]``, n a multiple of 4: the hash of the trigram at each place, ASCII in lower case."""
    lower = np.zeros(n + 8, np.uint8)
    lower[: stream.size] = stream | ((stream - np.uint8(65) < 26).astype(np.uint8) << 5)
    hashes = np.empty(n, np.uint32)
    for place in range(4):
        threes = lower[place : place + n].view("<u4") & _THREE_BYTES
        hashes[place::4] = ((threes * _HASH_FACTOR) >> _HALF_WIDTH) * np.uint32(BITS) >> _HALF_WIDTH
    return hashes


def _offsets(bodies: pa.StringArray) -> np.ndarray:
    return np.frombuffer(bodies.buffers()[1], np.int32, len(bodies) + 1, bodies.offset * 4)


def _stream(bodies: pa.StringArray) -> np.ndarray:
    offsets = _offsets(bodies)
    return np.frombuffer(bodies.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]


def _is_folded(stream: np.ndarray) -> bool:
    long_s = (stream[:-1] == 0xC5) & (stream[1:] == 0xBF)
    kelvin = (stream[:-2] == 0xE2) & (stream[1:-1] == 0x84) & (stream[2:] == 0xAA)
    return bool(long_s.any() or kelvin.any())
