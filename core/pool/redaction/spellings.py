r"""Other spellings of a text: the text with its escapes and encodings decoded, and where each part stands in it.

Decoded are backslash escapes (``\u0040``, ``\x40``, ``\/``), percent-encoding, HTML entities, zero-width characters,
base64 (both alphabets, padded or not, wrapped or not, at any alignment) and hexadecimal. For nested encodings the
caller repeats the decoding.
"""

from __future__ import annotations

import binascii
import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import add
from urllib.parse import unquote

MIN_ENCODED_BYTES = 12
"""Shorter base64 and hexadecimal is not decoded: any word decodes to a few readable characters."""

_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[\"'\\/bfnrt])"
)
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_PERCENT = re.compile(r"%[0-7][0-9a-fA-F]|%[c-fC-F][0-9a-fA-F](?:%[89abAB][0-9a-fA-F]){1,3}")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});")
_NO_WIDTH = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff]+"
)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}(?:(?:\r?\n|\\r\\n|\\n)[A-Za-z0-9+/_-]+)*")
_BREAK = re.compile(r"\r?\n|\\r\\n|\\n")
_HEX = re.compile(r"[0-9a-fA-F]{24,}")
_READABLE = re.compile(rb"(?:[\x20-\x7e\t\r\n]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}){12,}")
_STANDARD = str.maketrans("-_", "+/")

ENCODED = r"%[0-7c-fC-F][0-9A-Fa-f]|&[#A-Za-z]|[A-Za-z0-9+/_-]{16}|\\[ux/]|" + _NO_WIDTH.pattern
"""What every text with another spelling holds: a regular expression for Python and RE2."""


Place = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A part of a text, decoded.

    Attributes:
        text: the decoded text.
        source: (first, last) character of ``text`` -> (begin, end) in the text that it was decoded from.
    """

    text: str
    source: Callable[[int, int], tuple[int, int]]


def decodings(text: str) -> Iterator[Decoded]:
    """The text with one kind of spelling decoded, for each kind that occurs in it."""
    if "\\" in text:
        yield from _substituted(text, _ESCAPE, _unescaped)
    if "%" in text:
        yield from _substituted(text, _PERCENT, lambda encoded: unquote(encoded, errors="surrogateescape"))
    if "&" in text:
        yield from _substituted(text, _ENTITY, html.unescape)
    if not text.isascii():
        yield from _substituted(text, _NO_WIDTH, lambda _: "")
    for match in _BASE64.finditer(text):
        yield from _of_base64(match.group(), match.start())
    for match in _HEX.finditer(text):
        yield from _of_hex(match.group(), match.start())


def _unescaped(escape: str) -> str:
    kind = escape[1]
    if kind in "ux":
        if len(escape) == 12:
            pair = int(escape[2:6], 16).to_bytes(2, "big") + int(escape[8:], 16).to_bytes(2, "big")
            return pair.decode("utf-16-be")
        return chr(int(escape[2:], 16))
    return _SHORT.get(kind, kind)


def _substituted(text: str, what: re.Pattern[str], replacement_of: Callable[[str], str]) -> Iterator[Decoded]:
    """The text with each match replaced."""
    pieces: list[str] = []
    places: list[int] = []
    """Where each replacement begins in the result."""
    matches: list[tuple[int, int, int]] = []
    """(begin, end) in the text, and the replacement's length."""
    at = length = 0
    for match in what.finditer(text):
        begin, end = match.span()
        new = replacement_of(match.group())
        pieces += [text[at:begin], new]
        length += begin - at
        places.append(length)
        matches.append((begin, end, len(new)))
        length += len(new)
        at = end
    if not matches:
        return
    pieces.append(text[at:])

    def place(index: int) -> tuple[int, int]:
        i = bisect_right(places, index) - 1
        if i < 0:
            return index, index + 1
        begin, end, n = matches[i]
        inside = index - places[i]
        return (begin, end) if inside < n else (end + inside - n, end + inside - n + 1)

    yield Decoded("".join(pieces), lambda first, last: (place(first)[0], place(last)[1]))


def _of_base64(run: str, start: int) -> Iterator[Decoded]:
    """A run of base64, decoded from each of its first four characters: the text before it may look like base64."""
    if "\n" in run or "\\" in run:
        at = [i for begin, end in _lines(run) for i in range(begin, end)]
        letters = "".join(run[i] for i in at)
    else:
        at, letters = None, run
    letters = letters.translate(_STANDARD)
    for offset in range(4):
        n = len(letters) - offset
        n -= n % 4 == 1
        if n * 3 // 4 < MIN_ENCODED_BYTES:
            return
        data = binascii.a2b_base64(letters[offset : offset + n] + "=" * (-n % 4))
        for decoded, place in _readable(data):

            def source(first: int, last: int, place: Place = place, offset: int = offset) -> tuple[int, int]:
                begin = offset + place(first) * 4 // 3
                end = offset + -(-place(last + 1) * 4 // 3)
                if at is None:
                    return start + begin, start + end
                return start + at[begin], start + at[min(end, len(at)) - 1] + 1

            yield Decoded(decoded, source)


def _readable(data: bytes) -> Iterator[tuple[str, Place]]:
    """Runs of text in bytes, and the byte at which each of their characters begins, their end included."""
    for match in _READABLE.finditer(data):
        run, base = match.group(), match.start()
        text = run.decode("utf-8", errors="surrogateescape")
        if len(text) == len(run):
            yield text, partial(add, base)
        else:
            widths = (len(char.encode("utf-8", errors="surrogateescape")) for char in text)
            offsets = list(accumulate(widths, initial=base))
            yield text, offsets.__getitem__


def _lines(run: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for match in _BREAK.finditer(run):
        yield begin, match.start()
        begin = match.end()
    yield begin, len(run)


def _of_hex(run: str, start: int) -> Iterator[Decoded]:
    for offset in range(2):
        n = (len(run) - offset) // 2 * 2
        for decoded, place in _readable(bytes.fromhex(run[offset : offset + n])):

            def source(first: int, last: int, place: Place = place, offset: int = offset) -> tuple[int, int]:
                return start + offset + 2 * place(first), start + offset + 2 * place(last + 1)

            yield Decoded(decoded, source)
