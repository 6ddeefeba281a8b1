"""A model call as linking sees it: hashes of its messages, as sent and normalised, and its tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from core.pool.content import Message, canonical, content_hash, first_user_message, hashed

Int32 = NDArray[np.int32]
UInt64 = NDArray[np.uint64]

_SYSTEM_ROLES = frozenset({"system", "developer"})


def _normal_content(content: Any) -> Any:
    if content is None:
        return ""
    if isinstance(content, str):
        return content.strip()
    if isinstance(content, list):
        parts = [
            {key: value for key, value in part.items() if key != "cache_control"} if isinstance(part, dict) else part
            for part in content
        ]
        if all(isinstance(part, dict) and set(part) == {"type", "text"} and part["type"] == "text" for part in parts):
            return "".join(str(part["text"]) for part in parts).strip()
        return parts
    return content


def _normal_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            # Agents send calls without arguments again as an empty object, or as nothing.
            arguments = orjson.loads(arguments.strip() or "{}")
        except orjson.JSONDecodeError:
            arguments = arguments.strip()
    return [function.get("name"), {} if arguments is None else arguments]


def normal_message(message: Mapping[str, Any]) -> list[Any]:
    """What of a message stays the same when an agent sends it again."""
    calls = message.get("tool_calls")
    return [
        message.get("role"),
        _normal_content(message.get("content")),
        message.get("name"),
        [_normal_call(call) for call in calls] if isinstance(calls, list) else [],
    ]


def _short(body: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "little")


def task_prompt_uid(messages: Sequence[Mapping[str, Any]] | None, prompt_ids: Int32 | None) -> str | None:
    """Name of a prompt group that nobody named: a hash of the first user message, else of the prompt ids."""
    first = first_user_message(messages)
    if first is not None:
        return "p-" + content_hash(canonical(normal_message(first))).hex()
    if prompt_ids is not None and prompt_ids.size:
        return "p-" + content_hash(prompt_ids.tobytes()).hex()
    return None


@dataclass(frozen=True, slots=True)
class Call:
    """One model call as linking sees it."""

    step_uid: str
    prompt: Int32 | None
    response: Int32 | None
    exact: UInt64 | None
    """Hash of every message as sent, the answer not among them."""
    exact_answer: int | None
    system: int
    """Hash of the leading system messages."""
    talk: UInt64 | None
    """Normalised hash of every message after them."""
    answer: int | None
    """Normalised hash of the answer."""
    talk_roles: tuple[str, ...]
    has_tools: bool
    source: str
    status: str
    call_kind: str

    @property
    def n_prompt(self) -> int:
        """Prompt tokens, 0 when unknown."""
        return 0 if self.prompt is None else int(self.prompt.size)


class MessageHasher:
    """Exact and normalised hashes of messages; the normalised one is remembered by the exact one."""

    def __init__(self, limit: int = 200_000) -> None:
        self._normal: dict[int, int] = {}
        self._limit = limit

    def hashes(self, message: Mapping[str, Any]) -> tuple[int, int]:
        """(exact, normalised)."""
        if not isinstance(message, Message):
            return self._hashes(message)
        if message.link_hashes is None:
            message.link_hashes = self._hashes(message)
        return message.link_hashes

    def _hashes(self, message: Mapping[str, Any]) -> tuple[int, int]:
        exact = int.from_bytes(hashed(message)[1][:8], "little")
        normal = self._normal.get(exact)
        if normal is None:
            if len(self._normal) >= self._limit:
                self._normal.clear()
            normal = self._normal[exact] = _short(canonical(normal_message(message)))
        return exact, normal

    def call(
        self,
        *,
        step_uid: str,
        prompt: Int32 | None,
        response: Int32 | None,
        messages: Sequence[Mapping[str, Any]] | None,
        response_message: Mapping[str, Any] | None,
        tools: Sequence[Any] | None,
        source: str,
        status: str,
        call_kind: str,
    ) -> Call:
        """Hash the messages of one call."""
        exact: UInt64 | None = None
        talk: UInt64 | None = None
        system = 0
        roles: tuple[str, ...] = ()
        if messages is not None:
            pairs = [self.hashes(message) for message in messages]
            n_system = 0
            while n_system < len(messages) and messages[n_system].get("role") in _SYSTEM_ROLES:
                n_system += 1
            exact = np.array([pair[0] for pair in pairs], np.uint64)
            talk = np.array([pair[1] for pair in pairs[n_system:]], np.uint64)
            system = hash(tuple(pair[1] for pair in pairs[:n_system]))
            roles = tuple(str(message.get("role")) for message in messages[n_system:])
        answer = None if response_message is None else self.hashes(response_message)
        return Call(
            step_uid=step_uid,
            prompt=prompt,
            response=response,
            exact=exact,
            exact_answer=None if answer is None else answer[0],
            system=system,
            talk=talk,
            answer=None if answer is None else answer[1],
            talk_roles=roles,
            has_tools=bool(tools),
            source=source,
            status=status,
            call_kind=call_kind,
        )
