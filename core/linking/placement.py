"""The parent of a call among the earlier calls of its trajectory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from core.linking.calls import OPENING_SIDE_TASK, SIDE_TASK, SUBAGENT, AnswerFingerprint, Call, UInt64, rewriting_score
from core.linking.forest import TokenForest, shared_prefix
from core.pool.store.content import message_text
from core.types import CallKind, Source, StepStatus, Transition

MIN_UNRELATED_TOKENS = 64
"""Fewer shared leading tokens between calls that share no message come from the chat template."""
COMPACTED_RATIO = 0.6
"""A call was compacted if its context is shorter than this fraction of the one before it."""
NODE_BYTES = 1400
"""Bytes of one call in the link state, without its arrays."""
TRAJECTORY_BYTES = 1800
"""Bytes of a trajectory in the link state, without its calls."""
_USABLE = frozenset({StepStatus.OK, StepStatus.MISMATCH})
_OBSERVED = frozenset({Source.BLACKBOX, Source.SERVICE})
"""Sources whose call kind is inferred; other producers state it."""


@dataclass(slots=True)
class Node:
    """An earlier call: message hashes of prompt and answer, shortened; its tokens are in ``TokenForest``."""

    step_uid: str
    step_index: int
    n_prompt: int
    n_tokens: int | None
    exact: UInt64 | None
    dialogue: UInt64 | None
    n_dialogue: int
    answer: int | None
    system: int
    has_tools: bool
    kind: str
    n_head: int
    """Messages of ``dialogue`` before the first answer sampled in this trajectory: examples, primers, the task."""
    n_past: int
    """Messages of the prompt up to the last assistant's. Those after it are new; the next call may replace them."""
    last: int | None
    """The hash of the prompt's last message."""
    answer_fingerprint: AnswerFingerprint | None
    finished_at: float
    connection: str | None
    link: Link | None = None
    continued: bool = False
    uncertain: bool = False
    uncertain_child: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """The result: the place of a step in its trajectory."""

    step_index: int
    parent_step_uid: str | None
    n_shared_tokens: int
    n_shared_messages: int
    transition: str | None
    call_kind: str


class TrajectoryLinks:
    """The earlier calls of one trajectory, and where a further one belongs."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.by_uid: dict[str, int] = {}
        self.forest = TokenForest()
        self.prompt_uid: str | None = None
        self.policy_version: int | None = None
        """The version that a registration stamps on the trajectory's calls."""
        self._failed: dict[int, int] = {}
        self._answers: set[int] = set()
        self.has_tools = False
        self._n_bytes = TRAJECTORY_BYTES
        self._next_index = 0

    @property
    def n_bytes(self) -> int:
        """Approximate memory, bytes."""
        return self.forest.n_bytes + self._n_bytes

    def most_shared(self, call: Call) -> tuple[Node | None, int]:
        """The earlier call that shares most messages, its answer included, and their number.

        Of equals, a call whose messages are all shared is preferred, then the latest.
        """
        if call.dialogue is None:
            return None, 0
        best: Node | None = None
        score = (0, False)
        seen: UInt64 | None = None
        # The latest first: it usually shares most, and shorter ones can then be skipped.
        for node in reversed(self.nodes):
            if node.dialogue is None or node.dialogue is seen or node.dialogue.size < score[0]:
                continue
            seen = node.dialogue
            m = shared_prefix(node.dialogue, call.dialogue)
            if m and (m, m == node.dialogue.size) > score:
                best, score = node, (m, m == node.dialogue.size)
        return best, score[0]

    def knows_last_answer(self, call: Call) -> bool:
        """Whether the last answer in the call's prompt was given, or repeated as it is now, by an earlier call."""
        if call.dialogue is None or "assistant" not in call.dialogue_roles:
            return True
        last = max(place for place, role in enumerate(call.dialogue_roles) if role == "assistant")
        node, m = self.most_shared(call)
        if node is None:
            return False
        if m > last or (m == last and answer_match(node, call, m)):
            return True
        return any(sampled_at(other, call, shared_messages(other, call)) == last for other in self.nodes)

    def place(self, call: Call, *, step_index: int | None = None, sibling: bool = False) -> Link:
        """Find the call's place and store it. A call that is already stored keeps its place.

        Args:
            call: the call.
            step_index: its index as the producer numbered it; None: the next one.
            sibling: it is a further choice of the previous call, with the same prompt, and no retry.
        """
        known = self.by_uid.get(call.step_uid)
        if known is not None:
            link = self.nodes[known].link
            if link is not None:
                return link
        matches = {} if call.prompt is None else self.forest.matches(call.prompt)
        node, m = self.most_shared(call)
        head = self.n_head(call, node, m)
        parent, n_tokens, n_messages = self._parent(call, matches)
        transition, kind = self._name(call, matches, parent, node, m)
        if sibling and kind == CallKind.RETRY:
            kind = CallKind.MAIN
        self._note_failure(call)
        index = self._next_index if step_index is None else step_index
        link = Link(index, None if parent is None else parent.step_uid, n_tokens, n_messages, transition, kind)
        self.remember(call, link, matches, head)
        return link

    def n_head(self, call: Call, node: Node | None, m: int) -> int:
        """Number of messages of the call before the first answer that was sampled in this trajectory.

        Args:
            call: the call.
            node, m: as ``most_shared`` gives them.
        """
        if call.dialogue is None:
            return 0
        if node is not None and (m > node.n_head or answer_match(node, call, m)):
            return node.n_head
        if self._answers.isdisjoint(call.dialogue.tolist()):
            return int(call.dialogue.size)
        places = (sampled_at(other, call, shared_messages(other, call)) for other in self.nodes)
        return min((place for place in places if place is not None), default=int(call.dialogue.size))

    def _note_failure(self, call: Call) -> None:
        """Count failed calls of one prompt, and the calls that have replaced them since."""
        key = _request_key(call)
        if call.status not in _USABLE:
            self._failed[key] = self._failed.get(key, 0) + 1
        elif self._failed.get(key):
            self._failed[key] -= 1

    def remember(
        self, call: Call, link: Link, matches: Mapping[int, int] | None = None, head: int | None = None
    ) -> None:
        """Add a placed call, so that later calls can be linked to it. Failed calls can't be parents."""
        self._next_index = max(self._next_index, link.step_index + 1)
        number = len(self.nodes)
        self.by_uid[call.step_uid] = number
        usable = call.status in _USABLE
        if head is None:
            self._note_failure(call)
            head = self.n_head(call, *self.most_shared(call))
        tokens = None
        if usable and call.prompt is not None:
            if matches is None:
                matches = self.forest.matches(call.prompt)
            tokens = call.prompt if call.response is None else np.concatenate([call.prompt, call.response])
            self.forest.add(number, tokens, matches)
        exact = _append_answer(call.exact, call.exact_answer) if usable else None
        dialogue = _append_answer(call.dialogue, call.answer) if usable else None
        if self.nodes:
            # Retried calls have the same messages: they share one array.
            exact, dialogue = (
                _reuse_if_equal(self.nodes[-1].exact, exact),
                _reuse_if_equal(self.nodes[-1].dialogue, dialogue),
            )
        self.nodes.append(
            Node(
                step_uid=call.step_uid,
                step_index=link.step_index,
                n_prompt=call.n_prompt,
                n_tokens=None if tokens is None else int(tokens.size),
                exact=exact,
                dialogue=dialogue,
                n_dialogue=0 if call.dialogue is None else int(call.dialogue.size),
                answer=call.answer,
                system=call.system,
                has_tools=call.has_tools,
                kind=link.call_kind,
                n_head=head,
                n_past=max((n for n, role in enumerate(call.dialogue_roles, 1) if role == "assistant"), default=0),
                last=None if call.dialogue is None or not call.dialogue.size else int(call.dialogue[-1]),
                answer_fingerprint=call.answer_fingerprint if usable else None,
                finished_at=call.finished_at,
                connection=call.connection,
                link=link,
                uncertain=call.uncertain,
            )
        )
        if usable and call.answer is not None:
            self._answers.add(call.answer)
        self.has_tools |= call.has_tools
        self._n_bytes += NODE_BYTES + sum(hashes.nbytes for hashes in (exact, dialogue) if hashes is not None)
        if link.transition in (Transition.EXTENDS, Transition.REALIGNED, Transition.TAIL_REPLACED):
            at = self.by_uid.get(link.parent_step_uid or "")
            if at is not None:
                self.nodes[at].continued = True
                self.nodes[at].uncertain_child |= call.uncertain

    def _parent(self, call: Call, matches: Mapping[int, int]) -> tuple[Node | None, int, int]:
        """The step that this one is stored as a delta of: most shared tokens, else most shared messages as sent."""
        exact: dict[int, int] = {}
        most = shared = 0
        seen: UInt64 | None = None
        # The candidates are the nodes that share most messages, and those that the tokens point to.
        longest = max(matches.values(), default=0)
        named = {index for index, n in matches.items() if n == longest}
        for index in range(len(self.nodes) - 1, -1, -1):
            earlier = self.nodes[index].exact
            if earlier is not None and call.exact is not None and (earlier.size >= most or index in named):
                if earlier is not seen:
                    seen, shared = earlier, shared_prefix(earlier, call.exact)
                exact[index] = shared
                most = max(most, shared)
        if matches:
            n_shared_by_node = self._shared_dialogues(named, call)
            best = max(
                named, key=lambda i: (exact.get(i, 0), n_shared_by_node[i], longest == self.forest.lengths[i], -i)
            )
            node = self.nodes[best]
            related = (
                n_shared_by_node[best] > 0 or exact.get(best, 0) > 0 or call.dialogue is None or node.dialogue is None
            )
            if longest and (related or longest >= MIN_UNRELATED_TOKENS):
                return node, longest, exact.get(best, 0)
        n_messages = max(exact.values(), default=0)
        if n_messages == 0:
            return None, 0, 0
        closest = [index for index, n_shared in exact.items() if n_shared == n_messages]
        n_shared_by_node = self._shared_dialogues(closest, call)
        best = max(closest, key=lambda i: (matches.get(i, 0), n_shared_by_node[i], -i))
        return self.nodes[best], matches.get(best, 0), n_messages

    def _shared_dialogues(self, indices: Iterable[int], call: Call) -> dict[int, int]:
        """``_shared_dialogue`` of these nodes, computed once for each array."""
        known: dict[int, int] = {}
        arrays = {}
        for index in indices:
            array = id(self.nodes[index].dialogue)
            if array not in known:
                known[array] = self._shared_dialogue(index, call)
            arrays[index] = known[array]
        return arrays

    def _shared_dialogue(self, index: int, call: Call) -> int:
        dialogue = self.nodes[index].dialogue
        return 0 if dialogue is None or call.dialogue is None else shared_prefix(dialogue, call.dialogue)

    def _name(
        self, call: Call, matches: Mapping[int, int], parent: Node | None, node: Node | None, m: int
    ) -> tuple[str | None, str]:
        """(transition, call kind)."""
        earlier = [n for n in self.nodes if n.dialogue is not None or n.n_tokens is not None]
        observed = call.source in _OBSERVED
        if not earlier:
            return None, call.call_kind
        if call.dialogue is None or all(n.dialogue is None for n in earlier):
            return self._name_by_tokens(call, matches, parent), call.call_kind
        if node is None or (node.system != call.system and not _continues(node, call, m)):
            mains = [n for n in earlier if n.kind == CallKind.MAIN]
            transition, kind = self._name_unrelated(call, (mains or earlier)[-1])
        elif node.system != call.system and _is_subagent(call):
            # It received the conversation as input for a separate task.
            transition, kind = Transition.FORKED, CallKind.SUBAGENT
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

    def _name_unrelated(self, call: Call, latest: Node) -> tuple[str, str]:
        """Transition and kind of a call that shares no message with earlier ones."""
        kinds = {n.kind for n in self.nodes if n.system == call.system}
        if kinds == {CallKind.AUXILIARY} and not call.has_tools:
            return Transition.FORKED, CallKind.AUXILIARY
        if kinds:
            if kinds <= {CallKind.SUBAGENT, CallKind.RETRY} and call.has_tools:
                # Another sub-agent of a kind that is already running.
                return Transition.FORKED, CallKind.SUBAGENT
            shorter = call.dialogue is not None and call.dialogue.size < latest.n_dialogue
            return (Transition.COMPACTED if shorter else Transition.FORKED), CallKind.MAIN
        if call.has_tools and latest.has_tools:
            return Transition.FORKED, CallKind.SUBAGENT
        side = not call.has_tools and not self.has_tools and is_side_task(call)
        return Transition.FORKED, CallKind.AUXILIARY if side else CallKind.MAIN

    def _name_related(self, call: Call, matches: Mapping[int, int], node: Node, m: int) -> tuple[str, str]:
        """The call repeats the first ``m`` messages of ``node`` (its answer counted)."""
        assert call.dialogue is not None
        n_new, n_old = int(call.dialogue.size), node.n_dialogue
        kind = node.kind if node.kind in (CallKind.SUBAGENT, CallKind.AUXILIARY) else CallKind.MAIN
        if kind == CallKind.AUXILIARY and call.has_tools:
            kind = CallKind.MAIN
        if m == n_old == n_new and node.system == call.system:
            # The same prompt after an answer is one more sample. It is a retry if the client's SDK counts it as one,
            # unless a call of this prompt failed that it replaces.
            is_retry = call.retry_count > 0 and not self._failed.get(_request_key(call))
            return Transition.FORKED, CallKind.RETRY if is_retry else kind
        if m < n_old and n_old - m > 2 and n_new < n_old * COMPACTED_RATIO:
            return Transition.COMPACTED, kind
        if node.continued or n_new <= m:
            return Transition.FORKED, kind
        if m > n_old or (m == n_old and call.dialogue_roles[m] == "assistant"):
            index = self.by_uid[node.step_uid]
            if m > n_old and (index not in matches or matches[index] == node.n_tokens):
                return Transition.EXTENDS, kind
            return Transition.REALIGNED, kind
        return Transition.TAIL_REPLACED, kind

    def _name_by_tokens(self, call: Call, matches: Mapping[int, int], parent: Node | None) -> str:
        """The parent by tokens alone, for calls without messages."""
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


def _reuse_if_equal(before: UInt64 | None, hashes: UInt64 | None) -> UInt64 | None:
    """The earlier array if it is equal, so that both share memory."""
    return before if before is not None and hashes is not None and np.array_equal(before, hashes) else hashes


def _append_answer(hashes: UInt64 | None, answer: int | None) -> UInt64 | None:
    if hashes is None or answer is None:
        return hashes
    return np.append(hashes, np.uint64(answer))


def is_side_task(call: Call) -> bool:
    """Whether the system prompt, or the first message if there is none, requests an auxiliary task."""
    if not call.messages:
        return False
    return SIDE_TASK.search(message_text(call.messages[0])[:2000]) is not None


def opens_side_task(call: Call) -> bool:
    """Whether a first call without tools is a harness's own, by the first words of its system prompt."""
    if call.has_tools or not call.n_system or "assistant" in call.dialogue_roles:
        return False
    return OPENING_SIDE_TASK.search(message_text(call.messages[0])[:400]) is not None


def _is_subagent(call: Call) -> bool:
    """Whether the system prompt's first words make a sub-agent of the model."""
    return bool(call.n_system) and SUBAGENT.search(message_text(call.messages[0])[:400]) is not None


def _request_key(call: Call) -> int:
    return hash((call.system, None if call.dialogue is None else call.dialogue.tobytes()))


def shared_messages(node: Node, call: Call) -> int:
    """Number of leading dialogue messages that both share, the node's answer included."""
    return 0 if node.dialogue is None or call.dialogue is None else shared_prefix(node.dialogue, call.dialogue)


def sampled_at(node: Node, call: Call, m: int) -> int | None:
    """Index of the answer of ``node`` in the call's dialogue; None if absent. ``m``: the messages that they share.

    Equal text is not enough, since examples contain answers too. Either the shared messages end there (the rest of the
    prompt was replaced), or the message before it is the last one of the node's prompt.
    """
    if node.answer is None or node.dialogue is None or call.dialogue is None:
        return None
    if m > node.n_dialogue:
        return node.n_dialogue
    for place in np.flatnonzero(call.dialogue[m:] == np.uint64(node.answer)) + m:
        if (place == m >= node.n_past) or (place > 0 and node.last == int(call.dialogue[place - 1])):
            return int(place)
    return None


def _continues(node: Node, call: Call, m: int) -> bool:
    """Whether the call continues ``node``: it contains an answer sampled in this trajectory or its replacement."""
    if call.dialogue is None:
        return False
    return m > node.n_head or sampled_at(node, call, m) is not None or _rewritten(node, call, m)


def _rewritten(node: Node, call: Call, m: int) -> bool:
    """Whether the call repeats the node's full prompt, followed by another answer."""
    return (
        call.dialogue is not None
        and m == node.n_dialogue < call.dialogue.size
        and call.dialogue_roles[m] == "assistant"
    )


def answer_match(node: Node, call: Call, m: int) -> int:
    """How well the message after the full prompt matches the answer (``rewriting_score``); 0: not at all."""
    if node.answer_fingerprint is None or not _rewritten(node, call, m):
        return 0
    return rewriting_score(call.messages[call.n_system + m], node.answer_fingerprint)
