"""Where a call belongs among the earlier calls of its trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from core.linking.calls import Call, UInt64
from core.linking.forest import TokenForest, shared_prefix
from core.types import CallKind, Source, StepStatus, Transition

MIN_UNRELATED_TOKENS = 64
"""Fewer shared leading tokens between calls that share no message are template, not kinship."""
COMPACTED_RATIO = 0.6
"""A call whose context is shorter than this part of the one before it was compacted."""
NODE_BYTES = 1000
"""What one remembered call takes beside its arrays, roughly."""
_OBSERVED = frozenset({Source.BLACKBOX, Source.SERVICE})
"""Sources whose call kind is concluded; other producers know what they send."""


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
        score = (0, False)
        seen: UInt64 | None = None
        # The latest first: it mostly shares most, and what is shorter than that need not be looked at.
        for node in reversed(self.nodes):
            if node.talk is None or node.talk is seen or node.talk.size < score[0]:
                continue
            seen = node.talk
            m = shared_prefix(node.talk, call.talk)
            if m and (m, m == node.talk.size) > score:
                best, score = node, (m, m == node.talk.size)
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
        if self.nodes:
            # Calls that are tried again hold the same messages: one array stands for all of them.
            exact, talk = _same(self.nodes[-1].exact, exact), _same(self.nodes[-1].talk, talk)
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
        exact: dict[int, int] = {}
        most = shared = 0
        seen: UInt64 | None = None
        # Those that share most are found; of the others only those that the tokens name are asked for.
        longest = max(matches.values(), default=0)
        named = {index for index, n in matches.items() if n == longest}
        for index in range(len(self.nodes) - 1, -1, -1):
            own = self.nodes[index].exact
            if own is not None and call.exact is not None and (own.size >= most or index in named):
                if own is not seen:
                    seen, shared = own, shared_prefix(own, call.exact)
                exact[index] = shared
                most = max(most, shared)
        if matches:
            talks = self._talks(named, call)
            best = max(named, key=lambda i: (exact.get(i, 0), talks[i], longest == self.forest.lengths[i], -i))
            node = self.nodes[best]
            related = talks[best] > 0 or exact.get(best, 0) > 0 or call.talk is None or node.talk is None
            if longest and (related or longest >= MIN_UNRELATED_TOKENS):
                return node, longest, exact.get(best, 0)
        shared_messages = max(exact.values(), default=0)
        if shared_messages == 0:
            return None, 0, 0
        closest = [index for index, found in exact.items() if found == shared_messages]
        talks = self._talks(closest, call)
        best = max(closest, key=lambda i: (matches.get(i, 0), talks[i], -i))
        return self.nodes[best], matches.get(best, 0), shared_messages

    def _talks(self, indices: Iterable[int], call: Call) -> dict[int, int]:
        """``_talk`` of these nodes, asked once for each array."""
        known: dict[int, int] = {}
        found = {}
        for index in indices:
            array = id(self.nodes[index].talk)
            if array not in known:
                known[array] = self._talk(index, call)
            found[index] = known[array]
        return found

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
        kinds = {n.kind for n in self.nodes if n.system == call.system}
        if kinds:
            if kinds <= {CallKind.SUBAGENT, CallKind.RETRY} and call.has_tools:
                # Another of the kind of sub-agent that is at work already.
                return Transition.FORKED, CallKind.SUBAGENT
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


def _same(before: UInt64 | None, hashes: UInt64 | None) -> UInt64 | None:
    """The array that says the same, if the one before does."""
    return before if before is not None and hashes is not None and np.array_equal(before, hashes) else hashes


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
