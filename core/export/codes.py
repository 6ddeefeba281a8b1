"""Encodes arrays of numbers as JSON, msgpack and pickle.

Integers have varying widths, so their encoders return all bytes and the end of each number::

    json_ints([7, 300])  ->  b"7,300,", [2, 6]
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from core.errors import InvalidInput

Bytes = NDArray[np.uint8]
Ends = NDArray[np.int64]
Encoder = Callable[[NDArray[Any]], tuple[Bytes, Ends]]
"""Numbers [n] -> (their bytes one after another, int64 [n] where each ends)."""

COMMA = ord(",")
BLOCK = 1 << 15
"""Integers encoded at once, so that intermediate arrays stay in the processor's cache."""


def json_numbers(values: NDArray[Any]) -> tuple[Bytes, Ends]:
    """JSON numbers, each followed by a comma; floats in the shortest form for their width, as orjson writes them."""
    text = np.frombuffer(orjson.dumps(np.ascontiguousarray(values), option=orjson.OPT_SERIALIZE_NUMPY), dtype=np.uint8)
    if not len(values):
        return text[:0], np.zeros(0, dtype=np.int64)
    # Drop the opening bracket and replace the closing one with the last comma.
    body = text[1:].copy()
    body[-1] = COMMA
    return body, np.flatnonzero(body == COMMA) + 1


def pickle_ints(values: NDArray[Any]) -> tuple[Bytes, Ends]:
    """Opcodes BININT1, BININT2 and BININT, as ``pickle`` chooses them; int32 values."""

    def words(block: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        far, half = (block < 0) | (block > 0xFFFF), block > 0xFF
        tags = np.where(far, pickle.BININT[0], np.where(half, pickle.BININT2[0], pickle.BININT1[0]))
        return tags | (block & 0xFFFFFFFF) << 8, np.where(far, 5, 2 + half)

    return _packed(values, words)


def msgpack_ints(values: NDArray[Any]) -> tuple[Bytes, Ends]:
    """Positive fixint, uint 8, uint 16 and uint 32, the shortest that holds a value. InvalidInput for negative ones."""
    if len(values) and int(values.min()) < 0:
        raise InvalidInput(f"a token id is {int(values.min())}", field="view")

    def words(block: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        far = 0xCE | block.astype(np.uint32).byteswap().astype(np.int64) << 8
        half = 0xCD | block.astype(np.uint16).byteswap().astype(np.int64) << 8
        near = np.where(block > 0x7F, 0xCC | block << 8, block)
        widths = 1 + (block > 0x7F).astype(np.int64) + (block > 0xFF) + 2 * (block > 0xFFFF)
        return np.where(block > 0xFFFF, far, np.where(block > 0xFF, half, near)), widths

    return _packed(values, words)


def pickle_floats(values: NDArray[Any]) -> Bytes:
    """Opcode BINFLOAT with each number as a double: uint8 [9 n]."""
    return _tagged(pickle.BINFLOAT[0], values.astype(">f8"))


def msgpack_floats(values: NDArray[np.float32]) -> tuple[Bytes, Ends]:
    """float 32, and positive fixint 0 for 0.0, which typed decoders read as the float: most numbers of a row are 0."""
    zero = (values == 0) & ~np.signbit(values)
    wide = _tagged(0xCA, values.astype(">f4")).reshape(-1, 5)
    wide[zero, 0] = 0
    widths = np.where(zero, 1, 5)
    return wide[np.arange(5) < widths[:, None]], np.cumsum(widths)


def _tagged(tag: int, values: NDArray[Any]) -> Bytes:
    """A byte ``tag`` before each value's bytes: uint8 [n × (1 + width)]."""
    out = np.empty((len(values), 1 + values.dtype.itemsize), dtype=np.uint8)
    out[:, 0] = tag
    out[:, 1:] = values.view(np.uint8).reshape(len(values), values.dtype.itemsize)
    return out.reshape(-1)


def _packed(
    values: NDArray[Any], words: Callable[[NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]]
) -> tuple[Bytes, Ends]:
    """The first bytes of each number's little-endian word, concatenated; ``words`` gives words and widths."""
    parts, widths = [np.zeros(0, dtype=np.uint8)], [np.zeros(0, dtype=np.int64)]
    for at in range(0, len(values), BLOCK):
        encoded, width = words(values[at : at + BLOCK].astype(np.int64))
        parts.append(encoded.astype("<i8").view(np.uint8).reshape(-1, 8)[np.arange(8) < width[:, None]])
        widths.append(width)
    return np.concatenate(parts), np.cumsum(np.concatenate(widths))
