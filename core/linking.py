"""Linking: where a call belongs in its trajectory, found by what it shares with earlier calls.

Two prefixes are compared: token ids (what is stored shared) and messages (what the agent meant). Messages are compared
normalised: cache marks, reasoning, tool-call ids and outer whitespace don't count, since agents rewrite them. Leading
system messages are compared apart, because some agents write the time into them.

    earlier call   U1 A1 T1            answer A2
    next call      U1 A1 T1 A2 T2      extends      (realigned when the tokens of A2 came back different)
    next call      U1 A1 T1' ...       tail_replaced
    next call      S1                  compacted    (same system, shorter, nothing in common)
    next call      U1 X ...            forked       (something already continues from there)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from core.pool.content import canonical, content_hash, first_user_message, to_json
from core.types import CallKind, Source, StepStatus, Transition

Int32 = NDArray[np.int32]
UInt64 = NDArray[np.uint64]

MIN_UNRELATED_TOKENS = 64
"""Fewer shared leading tokens between calls that share no message are template, not kinship."""
COMPACTED_RATIO = 0.6
"""A call whose context is shorter than this part of the one before it was compacted."""
NODE_BYTES = 1000
"""What one remembered call takes beside its arrays, roughly."""
_SYSTEM_ROLES = frozenset({"system", "developer"})
_OBSERVED = frozenset({Source.BLACKBOX, Source.SERVICE})
"""Sources whose call kind is concluded; other producers know what they send."""


def shared_prefix(left: NDArray[Any], right: NDArray[Any]) -> int:
    """Length of the longest common prefix of two flat arrays."""
    n = min(left.size, right.size)
    same = left[:n] == right[:n]
    return n if same.all() else int(same.argmin())


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
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            arguments = arguments.strip()
    return [function.get("name"), arguments]


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
        exact = _short(to_json(message))
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


@dataclass(slots=True)
class _Node:
    """An earlier call: message hashes of prompt and answer, kept short; its tokens stand in ``TokenForest``."""

    step_uid: str
    step_index: int
    n_prompt: int
    n_tokens: int | None
    exact: UInt64 | None
    talk: UInt64 | None
    n_talk: int
    answer: int | None
    system: int
    has_tools: bool
    kind: str
    link: Link | None = None
    continued: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """The result: how a step hangs in its trajectory."""

    step_index: int
    parent_step_uid: str | None
    n_shared_tokens: int
    n_shared_messages: int
    transition: str | None
    call_kind: str


@dataclass
class TokenForest:
    """Full sequences (prompt, then response) by node, kept only for the tips that nothing extends whole."""

    tips: dict[int, Int32] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    below: dict[int, int] = field(default_factory=dict)
    """Node -> the longest other node that is a prefix of it."""

    def matches(self, prompt: Int32) -> dict[int, int]:
        """Shared leading tokens of ``prompt`` with every node."""
        found: dict[int, int] = {}
        for tip, tokens in self.tips.items():
            n = shared_prefix(tokens, prompt)
            node: int | None = tip
            while node is not None:
                found[node] = max(found.get(node, 0), min(n, self.lengths[node]))
                node = self.below.get(node)
        return found

    def add(self, node: int, tokens: Int32, matches: Mapping[int, int]) -> None:
        """Add a node whose prompt has these ``matches``."""
        whole = [other for other, n in matches.items() if n == self.lengths[other]]
        if whole:
            longest = max(whole, key=lambda other: (self.lengths[other], other))
            self.below[node] = longest
            self.tips.pop(longest, None)
        self.tips[node] = tokens
        self.lengths[node] = int(tokens.size)

    @property
    def n_bytes(self) -> int:
        """Memory held by the tips."""
        return sum(tokens.nbytes for tokens in self.tips.values())


class TrajectoryLinks:
    """The earlier calls of one trajectory, and where a further one belongs."""

    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self.by_uid: dict[str, int] = {}
        self.forest = TokenForest()
        self.prompt_uid: str | None = None
        self.has_tools = False
        self._n_bytes = 0
        self._next_index = 0

    @property
    def n_bytes(self) -> int:
        """Memory held, roughly."""
        return self.forest.n_bytes + self._n_bytes

    def best_talk(self, call: Call) -> tuple[_Node | None, int]:
        """The earlier call that shares most messages, answer included; of equals one used up whole, else the latest."""
        if call.talk is None:
            return None, 0
        best: _Node | None = None
        score: tuple[int, bool, int] = (0, False, -1)
        for index, node in enumerate(self.nodes):
            if node.talk is None:
                continue
            m = shared_prefix(node.talk, call.talk)
            if m and (m, m == node.talk.size, index) > score:
                best, score = node, (m, m == node.talk.size, index)
        return best, score[0]

    def place(self, call: Call, *, step_index: int | None = None, sibling: bool = False) -> Link:
        """Find the call's place and remember it. A call that is known already keeps its place.

        Args:
            call: the call.
            step_index: its place as the producer numbered it; None counts on.
            sibling: a further choice of the call before it: the same prompt, and no retry.
        """
        known = self.by_uid.get(call.step_uid)
        if known is not None:
            link = self.nodes[known].link
            if link is not None:
                return link
        matches = {} if call.prompt is None else self.forest.matches(call.prompt)
        node, m = self.best_talk(call)
        parent, n_tokens, n_messages = self._parent(call, matches)
        transition, kind = self._name(call, matches, parent, node, m)
        if sibling and kind == CallKind.RETRY:
            kind = CallKind.MAIN
        index = self._next_index if step_index is None else step_index
        link = Link(index, None if parent is None else parent.step_uid, n_tokens, n_messages, transition, kind)
        self.remember(call, link, matches)
        return link

    def remember(self, call: Call, link: Link, matches: Mapping[int, int] | None = None) -> None:
        """Take a placed call in, so that later ones can hang on it. Failed calls are no place to hang on."""
        self._next_index = max(self._next_index, link.step_index + 1)
        number = len(self.nodes)
        self.by_uid[call.step_uid] = number
        usable = call.status in (StepStatus.OK, StepStatus.MISMATCH)
        tokens = None
        if usable and call.prompt is not None:
            if matches is None:
                matches = self.forest.matches(call.prompt)
            tokens = call.prompt if call.response is None else np.concatenate([call.prompt, call.response])
            self.forest.add(number, tokens, matches)
        exact = _with(call.exact, call.exact_answer) if usable else None
        talk = _with(call.talk, call.answer) if usable else None
        self.nodes.append(
            _Node(
                step_uid=call.step_uid,
                step_index=link.step_index,
                n_prompt=call.n_prompt,
                n_tokens=None if tokens is None else int(tokens.size),
                exact=exact,
                talk=talk,
                n_talk=0 if call.talk is None else int(call.talk.size),
                answer=call.answer,
                system=call.system,
                has_tools=call.has_tools,
                kind=link.call_kind,
                link=link,
            )
        )
        self.has_tools |= call.has_tools
        self._n_bytes += NODE_BYTES + sum(hashes.nbytes for hashes in (exact, talk) if hashes is not None)
        if link.transition in (Transition.EXTENDS, Transition.REALIGNED, Transition.TAIL_REPLACED):
            at = self.by_uid.get(link.parent_step_uid or "")
            if at is not None:
                self.nodes[at].continued = True

    def _parent(self, call: Call, matches: Mapping[int, int]) -> tuple[_Node | None, int, int]:
        """The step to store this one against: most shared tokens, else most shared messages as sent."""
        exact = {
            index: shared_prefix(node.exact, call.exact)
            for index, node in enumerate(self.nodes)
            if node.exact is not None and call.exact is not None
        }
        if matches:
            n = max(matches.values())
            candidates = [index for index, shared in matches.items() if shared == n]
            best = max(
                candidates,
                key=lambda i: (exact.get(i, 0), self._talk(i, call), n == self.forest.lengths[i], -i),
            )
            node = self.nodes[best]
            related = self._talk(best, call) > 0 or exact.get(best, 0) > 0 or call.talk is None or node.talk is None
            if n and (related or n >= MIN_UNRELATED_TOKENS):
                return node, n, exact.get(best, 0)
        shared_messages = max(exact.values(), default=0)
        if shared_messages == 0:
            return None, 0, 0
        best = max(
            (index for index, shared in exact.items() if shared == shared_messages),
            key=lambda i: (matches.get(i, 0), self._talk(i, call), -i),
        )
        return self.nodes[best], matches.get(best, 0), shared_messages

    def _talk(self, index: int, call: Call) -> int:
        talk = self.nodes[index].talk
        return 0 if talk is None or call.talk is None else shared_prefix(talk, call.talk)

    def _name(
        self, call: Call, matches: Mapping[int, int], parent: _Node | None, node: _Node | None, m: int
    ) -> tuple[str | None, str]:
        """(transition, call kind)."""
        earlier = [n for n in self.nodes if n.talk is not None or n.n_tokens is not None]
        observed = call.source in _OBSERVED
        if not earlier:
            return None, call.call_kind
        if call.talk is None or all(n.talk is None for n in earlier):
            return self._name_by_tokens(call, matches, parent), call.call_kind
        if node is None or (m <= 1 and node.system != call.system and not _continues(node, call, m)):
            mains = [n for n in earlier if n.kind == CallKind.MAIN]
            transition, kind = self._name_unrelated(call, (mains or earlier)[-1])
        else:
            transition, kind = self._name_related(call, matches, node, m)
        if (
            observed
            and kind == CallKind.MAIN
            and not call.has_tools
            and self.has_tools
            and transition
            in (
                Transition.FORKED,
                Transition.COMPACTED,
            )
        ):
            kind = CallKind.AUXILIARY
        return transition, (kind if observed else call.call_kind)

    def _name_unrelated(self, call: Call, latest: _Node) -> tuple[str, str]:
        """Nothing said before is in this call."""
        if any(n.system == call.system for n in self.nodes):
            shorter = call.talk is not None and call.talk.size < latest.n_talk
            return (Transition.COMPACTED if shorter else Transition.FORKED), CallKind.MAIN
        kind = CallKind.SUBAGENT if call.has_tools and latest.has_tools else CallKind.MAIN
        return Transition.FORKED, kind

    def _name_related(self, call: Call, matches: Mapping[int, int], node: _Node, m: int) -> tuple[str, str]:
        """The call repeats the first ``m`` messages of ``node`` (its answer counted)."""
        assert call.talk is not None
        n_new, n_old = int(call.talk.size), node.n_talk
        kind = node.kind if node.kind in (CallKind.SUBAGENT, CallKind.AUXILIARY) else CallKind.MAIN
        if kind == CallKind.AUXILIARY and call.has_tools:
            kind = CallKind.MAIN
        if m == n_old == n_new and node.system == call.system:
            return Transition.FORKED, CallKind.RETRY
        if m < n_old and n_old - m > 2 and n_new < n_old * COMPACTED_RATIO:
            return Transition.COMPACTED, kind
        if node.continued or n_new <= m:
            return Transition.FORKED, kind
        if m > n_old or (m == n_old and call.talk_roles[m] == "assistant"):
            at = self.by_uid[node.step_uid]
            if m > n_old and (at not in matches or matches[at] == node.n_tokens):
                return Transition.EXTENDS, kind
            return Transition.REALIGNED, kind
        return Transition.TAIL_REPLACED, kind

    def _name_by_tokens(self, call: Call, matches: Mapping[int, int], parent: _Node | None) -> str:
        """Without messages the tokens alone tell."""
        if parent is None or parent.continued or parent.n_tokens is None:
            return Transition.FORKED
        n = matches.get(self.by_uid[parent.step_uid], 0)
        if n == parent.n_tokens:
            return Transition.EXTENDS if call.n_prompt >= n else Transition.FORKED
        if n >= parent.n_prompt:
            return Transition.REALIGNED if call.n_prompt > parent.n_prompt else Transition.FORKED
        if call.n_prompt < parent.n_prompt * COMPACTED_RATIO:
            return Transition.COMPACTED
        return Transition.TAIL_REPLACED


def _with(hashes: UInt64 | None, answer: int | None) -> UInt64 | None:
    if hashes is None or answer is None:
        return hashes
    return np.append(hashes, np.uint64(answer))


def _continues(node: _Node, call: Call, m: int) -> bool:
    """Whether the call goes on from ``node``: it holds the answer, whole prompt and an answer, or shared answers."""
    if call.talk is None:
        return False
    if node.answer is not None and bool((call.talk == np.uint64(node.answer)).any()):
        return True
    if m >= node.n_talk and call.talk.size > m and call.talk_roles[m] == "assistant":
        return True
    return "assistant" in call.talk_roles[:m]


def continuation(links: TrajectoryLinks, call: Call) -> tuple[bool, int] | None:
    """How well a call of unknown identity continues this trajectory: (holds its latest answer, shared messages).

    None when it does not: a second attempt at the same task shares the prompt but holds no answer.
    """
    node, m = links.best_talk(call)
    if node is None or not _continues(node, call, m) or call.talk is None:
        return None
    holds = node.answer is not None and bool((call.talk == np.uint64(node.answer)).any())
    return holds, m
