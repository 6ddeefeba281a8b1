"""Reads server-sent events from pieces that may be cut at any byte."""

from __future__ import annotations

from typing import Final

from core.errors import EngineError

MAX_EVENT_BYTES: Final = 64 << 20
"""Longer events are an error."""

_BOM: Final = b"\xef\xbb\xbf"


class EventReader:
    """Takes bytes, returns the data of complete events. Event names, ids and comments are ignored.

    Lines end with LF, CR LF or CR; an event ends with an empty line; several data lines are joined by LF.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._n_bytes = 0
        self._begun = False
        self._after_cr = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of the events that end in this piece.

        Raises:
            EngineError: an event over ``MAX_EVENT_BYTES``.
        """
        if self._after_cr and piece:
            # The LF of a CR LF that was cut in two ends no second line.
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if not piece:
            return []
        self._n_bytes += len(piece)
        if self._n_bytes > MAX_EVENT_BYTES:
            raise EngineError(f"the engine sent an event of more than {MAX_EVENT_BYTES} bytes")
        if b"\n" not in piece and b"\r" not in piece:
            self._rest.append(piece)
            return []
        text = b"".join([*self._rest, piece]) if self._rest else piece
        if not self._begun:
            text, self._begun = text.removeprefix(_BOM), True
        if b"\r" in text:
            self._after_cr = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        events = [event for line in lines if (event := self._line(line)) is not None]
        self._rest = [rest] if rest else []
        if events:
            self._n_bytes = len(rest) + sum(map(len, self._data))
        return events

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            if not self._data:
                return None
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            self._data = []
            return data
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line == b"data":
            self._data.append(b"")
        return None
