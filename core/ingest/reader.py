"""Parses journal records incrementally: the parts that a record shares with earlier ones are not parsed again.

An agent sends its whole conversation with every call, and the engine returns the ids of the whole prompt. So a record
repeats the one before it of its trajectory, byte by byte, up to the last turn. The repeated part is cut out of the
text, so that it is neither parsed nor hashed twice. The result equals that of a plain parse.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from core.pool.store.content import Message, Tools
from core.records import parse

Int32 = NDArray[np.int32]

MAX_BYTES = 64 << 20
"""Bytes for the cached last records of trajectories."""

# Inside a JSON text the quotes would be escaped, so a name in quotes that a colon follows is always a key.
_IDS = b'"prompt_token_ids"'
_REQUEST = b'"request":{'
"""The gateway writes this key. The others are as the client or the engine wrote them, with white space or without."""
_REQUEST_END = b'"engine_added":'
"""The key that the gateway writes behind the request."""
_MESSAGES = b'"messages"'
_TOOLS = b'"tools"'
_LIST = re.compile(rb"\s*:\s*\[")
_OWNER = re.compile(rb'"trajectory_uid":"([^"\\]*)"')
_OWNER_WITHIN = 1000
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.S)
_MIN_CHARS = 256
"""Shorter lists are parsed faster than they are compared."""
_MARK = -(2**62)
"""A placeholder for messages that were cut out, minus a number for prompt ids. No record holds such numbers."""
_TOOLS_MARK = _MARK + 1
_OBJECTS = 3
"""The memory of parsed messages, relative to their text, about."""
_MESSAGE_BYTES = 500
"""Bytes of a parsed message in addition, however short it is."""
_ENTRY_BYTES = 600
"""Bytes of a cache entry without content."""


@dataclass(slots=True)
class _CacheEntry:
    """The last record of a trajectory: the part that it repeated, and the part that it added.

    Attributes:
        text: its messages' text, from after the opening bracket to the end of the last message.
        ends: where each message ends in ``text``.
        messages: the messages.
        tools_text: its tools' text, from after the opening bracket to the closing one.
        tools: the tools.
        ids_text: its prompt ids' text, between the brackets.
        ids: the same as numbers, ``[n]``.
    """

    text: bytes = b""
    ends: NDArray[np.int64] | None = None
    messages: list[Message] | None = None
    tools_text: bytes = b""
    tools: Tools | None = None
    ids_text: bytes = b""
    ids: Int32 | None = None

    @property
    def n_bytes(self) -> int:
        n_ids = len(self.ids_text) + (self.ids.nbytes if self.ids is not None else 0)
        n_messages = 0 if self.messages is None else _MESSAGE_BYTES * len(self.messages)
        return _ENTRY_BYTES + n_messages + _OBJECTS * (len(self.text) + len(self.tools_text)) + n_ids


class RecordReader:
    """Parses records and remembers the last one of each trajectory, within ``max_bytes``."""

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._held = 0
        # Not cachetools.LRUCache: the latest entry is read for any trajectory, and stays even if it is too large.
        self._entries: OrderedDict[str, _CacheEntry] = OrderedDict()

    def parse(self, payload: bytes) -> dict[str, Any]:
        """``core.records.parse``, with two differences in kind.

        Messages of a chat request are ``Message`` objects, its tools ``Tools``, and steps share both (leave them as
        they are); long prompt ids of a response are int32 arrays ``[n]``.

        Raises:
            InvalidInput: as ``core.records.parse``.
        """
        begin = payload.find(_REQUEST)
        if begin < 0:
            return parse(payload)
        match = _OWNER.search(payload, 0, min(begin, _OWNER_WITHIN))
        # Only a name for what to compare with: the comparison decides.
        owner = match[1].decode() if match is not None else ""
        last = self._entries.get(owner)
        if last is None and self._entries:
            # A new trajectory mostly begins as the latest does: the same system prompt, often the same task.
            last = next(reversed(self._entries.values()))
        last = last or _CacheEntry()
        try:
            record, entry = _parse(payload, begin + len(_REQUEST), last)
        except ValueError:
            return parse(payload)
        self._keep(owner, entry)
        return record

    def _keep(self, owner: str, entry: _CacheEntry) -> None:
        before = self._entries.pop(owner, None)
        self._held += entry.n_bytes - (before.n_bytes if before is not None else 0)
        self._entries[owner] = entry
        while self._held > self._max_bytes and len(self._entries) > 1:
            _, dropped = self._entries.popitem(last=False)
            self._held -= dropped.n_bytes


def _parse(payload: bytes, begin: int, last: _CacheEntry) -> tuple[dict[str, Any], _CacheEntry]:
    """The record, and its cache entry. ValueError if the record has an unexpected layout."""
    entry = _CacheEntry()
    cuts: list[tuple[int, int, int]] = []
    n_known = 0
    before, messages_at = _find_list(payload, _MESSAGES, begin)
    behind = begin
    if messages_at >= 0:
        n_known, shared = _known_messages(payload, messages_at, last)
        if n_known:
            cuts.append((messages_at, messages_at + shared, _MARK))
        fresh, behind = _message_ends(payload, messages_at + shared)
        ends = fresh - messages_at if last.ends is None else np.concatenate([last.ends[:n_known], fresh - messages_at])
        entry.ends = ends
        entry.text = payload[messages_at : messages_at + int(ends[-1])] if len(ends) else b""
    # Behind the request is the answer, most of the record, which has no tools.
    request_end = payload.find(_REQUEST_END, behind)
    _, tools = _find_list(payload, _TOOLS, behind, request_end if request_end >= 0 else None)
    if tools < 0 and messages_at >= 0:
        _, tools = _find_list(payload, _TOOLS, begin, before)
    if tools >= 0:
        if last.tools_text and payload.startswith(last.tools_text, tools):
            entry.tools_text, entry.tools = last.tools_text, last.tools
        else:
            _, closed = _message_ends(payload, tools)
            if closed - tools >= _MIN_CHARS:
                entry.tools_text = payload[tools : closed + 1]
                entry.tools = Tools(orjson.loads(b"[" + entry.tools_text))
        if entry.tools is not None:
            closed = tools + len(entry.tools_text) - 1
            cuts.append((tools, closed, _TOOLS_MARK))
            behind = max(behind, closed)
    texts: list[bytes] = []
    while (start := _find_list(payload, _IDS, behind)[1]) >= 0:
        behind = payload.index(b"]", start)
        if behind - start >= _MIN_CHARS:
            texts.append(payload[start:behind])
            cuts.append((start, behind, _MARK - len(texts)))
    record = parse(_without(payload, cuts))
    request = record.get("request")
    request = request if isinstance(request, dict) else {}
    if messages_at >= 0:
        messages = request.get("messages")
        if not isinstance(messages, list) or (n_known and (not messages or messages[0] != _MARK)):
            raise ValueError("the first messages of the record are not the request's")
        new = messages[1:] if n_known else messages
        if len(new) != len(ends) - n_known or not all(isinstance(one, dict) for one in new):
            raise ValueError("messages that are no objects")
        entry.messages = (last.messages or [])[:n_known] + [Message(one) for one in new]
        request["messages"] = list(entry.messages)
    if entry.tools is not None:
        if request.get("tools") != [_TOOLS_MARK]:
            raise ValueError("the first tools of the record are not the request's")
        request["tools"] = entry.tools
    arrays = {}
    for number, text in enumerate(texts, 1):
        entry.ids_text, entry.ids = text, _ids(text, last)
        arrays[_MARK - number] = entry.ids
    for holder in _holders(record.get("response")) if arrays else ():
        ids = holder.get("prompt_token_ids")
        if isinstance(ids, list) and len(ids) == 1 and ids[0] in arrays:
            holder["prompt_token_ids"] = arrays.pop(ids[0])
    if arrays:
        raise ValueError("prompt ids in a place where no engine writes them")
    return record, entry


def _find_list(payload: bytes, key: bytes, begin: int, end: int | None = None) -> tuple[int, int]:
    """Where the first such key whose value is a list begins, and where the list's content does; -1 each: nowhere."""
    at = payload.find(key, begin, end)
    while at >= 0:
        match = _LIST.match(payload, at + len(key))
        if match is not None:
            return at, match.end()
        at = payload.find(key, at + len(key), end)
    return -1, -1


def _without(payload: bytes, cuts: list[tuple[int, int, int]]) -> bytes:
    """The payload with a number in place of each (begin, end, number) that is cut out."""
    if not cuts:
        return payload
    pieces: list[bytes] = []
    at = 0
    for begin, end, mark in sorted(cuts):
        pieces.append(b"%b%d" % (payload[at:begin], mark))
        at = end
    return b"".join([*pieces, payload[at:]])


def _known_messages(payload: bytes, begin: int, last: _CacheEntry) -> tuple[int, int]:
    """How many leading messages are the remembered ones, and where the last of them ends."""
    if not last.text or last.ends is None:
        return 0, 0
    same = _shared_bytes(last.text, payload[begin : begin + len(last.text)])
    # A message ends where its brackets close: the same bytes up to there are the same message.
    n = int(np.searchsorted(last.ends, same, side="right"))
    return n, int(last.ends[n - 1]) if n else 0


def _message_ends(payload: bytes, begin: int) -> tuple[NDArray[np.int64], int]:
    """Where each object of a list ends, and the list. ValueError when it holds anything else, or never ends."""
    ends: list[int] = []
    depth = 0
    for token in _TOKENS.finditer(payload, begin):
        first = payload[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            if depth == 0:
                return np.array(ends, dtype=np.int64), token.start()
            depth -= 1
            if depth == 0:
                ends.append(token.end())
    raise ValueError("a list that does not end")


def _ids(text: bytes, last: _CacheEntry) -> Int32:
    """The ids of a list's text. ValueError when it holds anything else."""
    kept = n = 0
    if last.ids is not None:
        shared = _shared_bytes(last.ids_text, text)
        if shared == len(last.ids_text) and text[shared : shared + 1] in (b",", b""):
            kept, n = min(shared + 1, len(text)), last.ids.size
        else:
            kept = last.ids_text.rfind(b",", 0, shared) + 1
            n = last.ids_text.count(b",", 0, kept)
    fresh = orjson.loads(b"[%b]" % text[kept:])
    if set(map(type, fresh)) - {int} or min(fresh, default=0) < 0 or max(fresh, default=0) >= 2**31:
        raise ValueError("not a list of token ids")
    ids = np.array(fresh, dtype=np.int32)
    return np.concatenate([last.ids[:n], ids]) if last.ids is not None and n else ids


def _shared_bytes(one: bytes, other: bytes) -> int:
    """Length of the common prefix."""
    n = min(len(one), len(other))
    if one[:n] == other[:n]:
        return n
    return int((np.frombuffer(one, np.uint8, n) != np.frombuffer(other, np.uint8, n)).argmax())


def _holders(response: Any) -> Iterator[dict[str, Any]]:
    """The objects of an answer that may contain prompt ids."""
    if not isinstance(response, dict):
        return
    choices = response.get("choices")
    for one in (response, *(choices if isinstance(choices, list) else ())):
        if isinstance(one, dict):
            yield one
            for name in ("provider_specific_fields", "meta_info"):
                if isinstance(inner := one.get(name), dict):
                    yield inner
