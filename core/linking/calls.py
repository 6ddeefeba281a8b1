"""A model call for linking: hashes of its messages, as sent and normalised, and its tokens."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from core.dialects.exact import exact_json
from core.pool.store.content import Message, canonical, content_hash, hashed, message_text

Int32 = NDArray[np.int32]
UInt64 = NDArray[np.uint64]

_SYSTEM_ROLES = frozenset({"system", "developer"})
_FINGERPRINT_CHARS = 48
_MIN_QUOTED = 24
_MIN_CALLS = 8
_LOWER = bytes(range(256)).lower()
_NO_LETTERS = bytes(code for code in range(128) if not chr(code).isalnum())
"""For ASCII texts, which one table translates many times faster than a test of each character."""
_RANDOM_ID = re.compile(r"(?=[0-9A-Za-z]*[0-9])(?=[0-9A-Za-z]*[A-Za-z])[0-9A-Za-z]{8}")
"""Call ids that differ from one answer to the next; a name with a counter may not."""
_CURRENT_TIME = re.compile(
    r"""((?:today|current|now|date|time|it\ is)[^\n]{0,40}?)
    (?:\d{4}-\d\d?-\d\d?(?:[T ]+\d\d?:\d\d(?::\d\d(?:\.\d+)?)?)?
      | \d\d?[/.]\d\d?[/.]\d{2,4}
      | \d\d?\ +(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?,?\ +\d{4}
      | (?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\ +)?(?:\d\d?\ +)?
        (?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?\ +\d\d?(?:,?\ +\d{4})?
      | \d\d?:\d\d(?::\d\d)?
    )(?:[T, ]+(?:at\ +)?\d\d?:\d\d(?::\d\d)?)?(?:\ *[ap]m\b)?""",
    re.IGNORECASE | re.VERBOSE,
)
"""A time of day or a date in a system prompt, after a word that announces it."""
SIDE_TASK = re.compile(
    r"""commit\ messages?
    | (?:title|name|summary|summari[sz]e|summari[sz]ing|topic)\b[^.\n]{0,40}\b
      (?:conversation|chat|session|thread|discussion|dialog)
    | (?:conversation|chat|session|thread)\ (?:title|summary|name|topic)""",
    re.IGNORECASE | re.VERBOSE,
)
"""System prompts of a harness's auxiliary calls: commit messages, titles and summaries of the conversation."""

OPENING_SIDE_TASK = re.compile(
    r"""title\ generator
    | \b(?:generat|writ|creat|produc|extract|suggest|com(?:e|ing)\ up\ with)\w*\b[^.\n]{0,60}
      \b(?:commit\ messages?\b | titles?\b[^\n]{0,120}\b(?:conversation|chat|session|thread)\b)""",
    re.IGNORECASE | re.VERBOSE,
)
"""First words of system prompts that request a title or a commit message."""

SUBAGENT = re.compile(
    r"""\byou\s+are\s+(?:now\s+)?(?:acting\s+as\s+)?(?:an?|the)\s+
    (?:(?!(?:that|which|who|with|and|to|can|may|able)\b)[\w-]+\s+){0,5}sub-?agent\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""System prompts that assign a subagent's role: ``You are now acting as the memory extraction subagent``."""


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
            arguments = exact_json(arguments.strip() or "{}")
        except ValueError:
            arguments = arguments.strip()
    return [function.get("name"), {} if arguments is None else arguments]


def normal_message(message: Mapping[str, Any]) -> list[Any]:
    """The parts of a message that stay the same when an agent sends it again."""
    calls = message.get("tool_calls")
    return [
        message.get("role"),
        _normal_content(message.get("content")),
        message.get("name"),
        [_normal_call(call) for call in calls] if isinstance(calls, list) else [],
    ]


def without_date(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A system message without its date and time; other messages unchanged."""
    content = message.get("content")
    if message.get("role") not in _SYSTEM_ROLES or not isinstance(content, str | list):
        return message
    if isinstance(content, list):
        content = _normal_content(content)
    return {**message, "content": _CURRENT_TIME.sub(r"\1", content)} if isinstance(content, str) else message


@dataclass(frozen=True, slots=True)
class AnswerFingerprint:
    """The parts of an answer that survive a client's rewriting, in letters and digits only.

    Attributes:
        begin, end: the first and the last letters of its text and calls.
        text: the first letters of its text.
        calls: name and first letters of the arguments of every call.
        ids: the ids of its calls that look random, as sent.
    """

    begin: str
    end: str
    text: str
    calls: tuple[tuple[str, str], ...]
    ids: tuple[str, ...]


def fingerprint_answer(message: Mapping[str, Any]) -> AnswerFingerprint:
    """The fingerprint of an answer message."""
    letters = _letters(message)
    calls = message.get("tool_calls")
    calls = [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []
    normal = [_normal_call(call) for call in calls]
    return AnswerFingerprint(
        begin=letters[:_FINGERPRINT_CHARS],
        end=letters[-_FINGERPRINT_CHARS:],
        text=_alnum(_content_text(message))[:_FINGERPRINT_CHARS],
        calls=tuple((_alnum(str(c[0])), _alnum(str(c[1]))[:_FINGERPRINT_CHARS]) for c in normal if isinstance(c, list)),
        ids=tuple(uid for call in calls if isinstance(uid := call.get("id"), str) and _RANDOM_ID.search(uid)),
    )


def _content_text(message: Mapping[str, Any]) -> str:
    return message_text({"content": message.get("content")})


def _alnum(text: str) -> str:
    if text.isascii():
        return text.encode().translate(_LOWER, _NO_LETTERS).decode()
    return "".join(filter(str.isalnum, text)).lower()


def _letters(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    named = [str(_normal_call(call)) for call in calls] if isinstance(calls, list) else []
    return _alnum(message_text(message) + "".join(named))


def rewriting_score(message: Mapping[str, Any], answer: AnswerFingerprint) -> int:
    """How well a message matches this answer, which a client may have rewritten: 0 to 3.

    0: no match. 1: it contains the answer's beginning or end. 2: both. 3: the answer's text, and the names and
    arguments of all its calls, or the ids of the calls, which some clients write into the text.
    """
    letters = _letters(message)
    parts = (answer.text, *chain.from_iterable(answer.calls))
    if answer.calls and sum(map(len, parts)) >= _MIN_CALLS and all(part in letters for part in parts):
        return 3
    if not answer.begin:
        return 0 if letters else 2
    return 3 if contains_call_ids(message, answer) else (answer.begin in letters) + (answer.end in letters)


def contains_call_ids(message: Mapping[str, Any], answer: AnswerFingerprint) -> bool:
    """Whether the message contains the ids of all the answer's calls, as calls or in its text."""
    if not answer.ids:
        return False
    calls = message.get("tool_calls")
    ids = {call.get("id") for call in calls if isinstance(call, Mapping)} if isinstance(calls, list) else set()
    text = "" if ids.issuperset(answer.ids) else _content_text(message)
    return all(uid in ids or uid in text for uid in answer.ids)


def quotes_answer(letters: str, answer: AnswerFingerprint) -> bool:
    """Whether the letters contain the answer, if it is long enough to be recognised."""
    return len(answer.begin) >= _MIN_QUOTED and answer.begin in letters and answer.end in letters


def letters_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """Letters and digits of all messages."""
    return "".join(map(_letters, messages))


def _short_hash(body: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(body, digest_size=8).digest(), "little")


def task_prompt_uid(
    messages: Sequence[Mapping[str, Any]] | None, prompt_ids: Int32 | None, n_prompt: int | None = None
) -> str | None:
    """Default name of a prompt group: a hash of the messages before the first sampled answer.

    Args:
        messages: of the call.
        prompt_ids: its token ids, for calls without messages.
        n_prompt: the number of messages before the first answer that was sampled in its trajectory: system
            prompt, examples, primers, the task. None: all of them.
    """
    prompt = [normal_message(without_date(message)) for message in (messages or ())[:n_prompt]]
    if prompt:
        return "p-" + content_hash(canonical(prompt)).hex()
    if prompt_ids is not None and prompt_ids.size:
        return "p-" + content_hash(prompt_ids.tobytes()).hex()
    return None


@dataclass(frozen=True, slots=True)
class Call:
    """One model call, as input of linking."""

    step_uid: str
    prompt: Int32 | None
    response: Int32 | None
    exact: UInt64 | None
    """Hash of every message as sent, without the answer."""
    exact_answer: int | None
    system: int
    """Hash of the leading system messages."""
    dialogue: UInt64 | None
    """Normalised hash of every message after them."""
    answer: int | None
    """Normalised hash of the answer."""
    dialogue_roles: tuple[str, ...]
    has_tools: bool
    source: str
    status: str
    call_kind: str
    messages: Sequence[Mapping[str, Any]] = ()
    """The messages as sent; not kept in the link state."""
    answer_fingerprint: AnswerFingerprint | None = None
    retry_count: int = 0
    """The client SDK's retry number; 0 is the first try."""
    started_at: float = 0.0
    finished_at: float = 0.0
    connection: str | None = None
    uncertain: bool = False
    """Its place was marked uncertain. Set only for calls that are read back from the pool."""

    @property
    def n_system(self) -> int:
        """Leading system messages."""
        return len(self.messages) - len(self.dialogue_roles)

    @property
    def n_prompt(self) -> int:
        """Prompt tokens, 0 when unknown."""
        return 0 if self.prompt is None else int(self.prompt.size)


_WITHOUT_TIME = 0x5A5A5A5A5A5A5A5A


class MessageHasher:
    """Exact and normalised hashes of messages; normalised hashes are cached by exact hash."""

    def __init__(self, limit: int = 50_000) -> None:
        self._normal: LRUCache[int, int] = LRUCache(limit)

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
            normal = self._normal[exact] = _short_hash(canonical(normal_message(message)))
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
        retry_count: int = 0,
        started_at: float = 0.0,
        finished_at: float = 0.0,
        connection: str | None = None,
        uncertain: bool = False,
    ) -> Call:
        """Hash the messages of one call; the rest as in ``Call``."""
        exact: UInt64 | None = None
        dialogue: UInt64 | None = None
        system = 0
        roles: tuple[str, ...] = ()
        if messages is not None:
            pairs = [self.hashes(message) for message in messages]
            n_system = 0
            while n_system < len(messages) and messages[n_system].get("role") in _SYSTEM_ROLES:
                n_system += 1
            exact = np.array([pair[0] for pair in pairs], np.uint64)
            dialogue = np.array([pair[1] for pair in pairs[n_system:]], np.uint64)
            system = hash(
                tuple(self._hash_without_time(m, p) for m, p in zip(messages[:n_system], pairs, strict=False))
            )
            roles = tuple(str(message.get("role")) for message in messages[n_system:])
        answer = None if response_message is None else self.hashes(response_message)
        return Call(
            step_uid=step_uid,
            prompt=prompt,
            response=response,
            exact=exact,
            exact_answer=None if answer is None else answer[0],
            system=system,
            dialogue=dialogue,
            answer=None if answer is None else answer[1],
            dialogue_roles=roles,
            has_tools=bool(tools),
            source=source,
            status=status,
            call_kind=call_kind,
            messages=messages or (),
            answer_fingerprint=None if response_message is None else fingerprint_answer(response_message),
            retry_count=retry_count,
            started_at=started_at,
            finished_at=finished_at,
            connection=connection,
            uncertain=uncertain,
        )

    def _hash_without_time(self, message: Mapping[str, Any], known: tuple[int, int]) -> int:
        """The normalised hash of a system message without its date and time, cached by its exact hash."""
        key = known[0] ^ _WITHOUT_TIME
        digest = self._normal.get(key)
        if digest is None:
            digest = self._normal[key] = _short_hash(canonical(normal_message(without_date(message))))
        return digest
