"""JSON and content hashes, by which equal messages are stored once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

PREVIEW_CHARS = 200


def to_json(value: Any) -> bytes:
    """JSON bytes, keys in the order given: chat templates render tools in that order."""
    return _dump(value, 0)


def canonical(value: Any) -> bytes:
    """JSON bytes with sorted keys: equal values give equal bytes."""
    return _dump(value, orjson.OPT_SORT_KEYS)


def _dump(value: Any, option: int) -> bytes:
    try:
        return orjson.dumps(value, option=option)
    except TypeError:  # integers beyond 64 bits, lone surrogates: rare, and kept all the same
        text = json.dumps(value, sort_keys=bool(option), ensure_ascii=True, separators=(",", ":"))
        return text.encode("ascii")


def decode(text: str | bytes | None) -> Any:
    """Read back what ``to_json`` or ``canonical`` wrote."""
    if text is None:
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def content_hash(body: bytes) -> bytes:
    """16 bytes of BLAKE2b."""
    return hashlib.blake2b(body, digest_size=16).digest()


class Message(dict[str, Any]):
    """A chat message that many steps hold: its JSON and hashes are made once. It must not be changed."""

    __slots__ = ("hashed", "link_hashes")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.hashed: tuple[bytes, bytes] | None = None
        """The cached result of ``hashed`` for it."""
        self.link_hashes: tuple[int, int] | None = None
        """``core.linking``'s, once it has made them."""


class Tools(list[Any]):
    """Tool schemas that many steps were offered, as ``Message``: made once, and not to be changed."""

    __slots__ = ("hashed",)

    def __init__(self, schemas: Iterable[Any]) -> None:
        super().__init__(schemas)
        self.hashed: tuple[bytes, bytes] | None = None
        """The cached result of ``hashed`` for them."""


def hashed(value: Any) -> tuple[bytes, bytes]:
    """``to_json``, and the ``content_hash`` of that; kept with what many steps hold."""
    shared = value if isinstance(value, Message | Tools) else None
    if shared is not None and shared.hashed is not None:
        return shared.hashed
    body = to_json(value)
    if shared is not None:
        # orjson's bytes take 4 KB of memory at least, however short they are; a copy takes what it holds.
        body = bytes(memoryview(body))
    made = body, content_hash(body)
    if shared is not None:
        shared.hashed = made
    return made


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, Sequence):
        for part in content:
            if isinstance(part, Mapping):
                text = part.get("text")
                if isinstance(text, str):
                    yield text
            elif isinstance(part, str):
                yield part


def message_text(message: Mapping[str, Any] | None) -> str:
    """The readable text of a chat message: its content, else its reasoning. Empty when there is none."""
    if message is None:
        return ""
    text = "\n".join(_texts(message.get("content")))
    if text.strip():
        return text
    for key in ("reasoning_content", "reasoning"):
        value = message.get(key)
        if isinstance(value, str) and value.strip():
            return value
    return ""


def called_tools(message: Mapping[str, Any] | None) -> list[str]:
    """Names of the tools a response calls, in order, each once."""
    names: dict[str, None] = {}
    calls = (message or {}).get("tool_calls")
    if isinstance(calls, Sequence) and not isinstance(calls, str):
        for call in calls:
            function = call.get("function") if isinstance(call, Mapping) else None
            name = function.get("name") if isinstance(function, Mapping) else None
            if isinstance(name, str):
                names[name] = None
    return list(names)


def printable(text: str) -> str:
    """The first characters, with what UTF-8 cannot hold replaced."""
    return text[:PREVIEW_CHARS].encode("utf-8", "replace").decode("utf-8")


def preview(message: Mapping[str, Any] | None) -> str | None:
    """First characters of the answer's text; a call's name and arguments where there is no text."""
    if message is None:
        return None
    text = message_text(message).strip()
    if not text:
        calls = message.get("tool_calls")
        parts = []
        for call in calls if isinstance(calls, list) else []:
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                parts.append(f"{function.get('name')}({function.get('arguments')})")
        text = " ".join(parts)
    return printable(text)
