"""An index of open trajectories of unknown identity by their answers: which of them a call may continue.

Thousands may be open at once, so only those that share an answer with the call are examined. Memory is bounded: the
oldest answers are evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import islice

from core.linking import Call

MAX_OPEN = 20_000
"""Trajectories of inferred identity that a call may continue."""
MAX_ANSWERS = 100_000
"""Answers that are remembered, the latest ones; twice that at most."""
MAX_ALIKE = 64
"""The most trajectories, the latest, that are candidates for one answer."""


class _Recent:
    """Key -> the latest names, for at least the latest ``limit`` keys and at most twice as many.

    Two plain dicts in place of cachetools.LRUCache: each call of unknown identity asks for each of its answers.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[int, tuple[str, ...]] = {}
        self._old: dict[int, tuple[str, ...]] = {}

    def get(self, key: int) -> tuple[str, ...]:
        return self._young.get(key) or self._old.get(key) or ()

    def add(self, key: int, name: str) -> None:
        known = self.get(key)
        if len(self._young) >= self._limit:
            self._young, self._old = {}, self._young
        if not known:
            self._young[key] = (name,)
        elif name != known[-1]:
            self._young[key] = (*(one for one in known if one != name), name)[-MAX_ALIKE:]

    def clear(self) -> None:
        self._young, self._old = {}, {}


class OpenTrajectories:
    """The open trajectories and, by hash, their answers and the prompts that were answered.

    Many agents may give the same answers ("Let me look."), so an answer is looked up together with the message before
    it as well.
    """

    def __init__(self, *, max_open: int = MAX_OPEN, max_answers: int = MAX_ANSWERS) -> None:
        self._max_open = max_open
        # Read from the latest on, in the order of use, which cachetools.LRUCache does not tell.
        self._open: OrderedDict[str, None] = OrderedDict()
        self._answers = _Recent(max_answers)
        self._replies = _Recent(max_answers)
        self._prompts = _Recent(max_answers)

    def __contains__(self, uid: object) -> bool:
        return uid in self._open

    def __len__(self) -> int:
        return len(self._open)

    def latest(self, n: int) -> list[str]:
        """The ``n`` latest, the last one first."""
        return list(islice(reversed(self._open), n))

    def close(self, uid: str) -> None:
        """No call joins it any more."""
        self._open.pop(uid, None)

    def touch(self, uid: str) -> None:
        """It is open, and the latest."""
        self._open[uid] = None
        self._open.move_to_end(uid)
        while len(self._open) > self._max_open:
            self._open.popitem(last=False)

    def note(self, uid: str, call: Call) -> None:
        """Remember a call of an open trajectory by its answer and its prompt."""
        if call.answer is None or call.dialogue is None:
            return
        self._answers.add(call.answer, uid)
        if call.dialogue.size:
            self._replies.add(_reply(int(call.dialogue[-1]), call.answer), uid)
        self._prompts.add(_keys(call)[-1], uid)

    def note_answers(self, answers: Iterable[tuple[str, int | None, int]]) -> None:
        """The same for trajectories whose calls were not reloaded.

        Args:
            answers: (trajectory, hash of the prompt's last message if known, hash of the answer).
        """
        for uid, last, answer in answers:
            self._answers.add(answer, uid)
            if last is not None:
                self._replies.add(_reply(last, answer), uid)
                # The hash of the whole prompt is not known.
                self._prompts.add(last, uid)

    def candidates(self, call: Call) -> Iterator[tuple[int, list[str]]]:
        """(n, trajectories that the call may continue), the likeliest first.

        First those whose answers it holds, the last answer's first; then those whose prompt is followed by another
        answer. No later trajectory shares more than ``n`` leading messages with the call, so if one of these shares
        ``n``, the later ones need not be examined.
        """
        if call.dialogue is None or "assistant" not in call.dialogue_roles:
            return
        keys, dialogue = _keys(call), [None, *call.dialogue.tolist()]
        # The message of ``place`` is ``dialogue[place + 1]``, the one before it ``dialogue[place]``.
        places = [place for place, role in enumerate(call.dialogue_roles) if role == "assistant"][::-1]
        for place in places:
            replied = self._still_open(self._replies.get(_reply(dialogue[place], dialogue[place + 1])))
            if replied:
                yield place + 1, replied
            if answered := self._still_open((*replied, *self._answers.get(dialogue[place + 1]))):
                yield 0, answered
        for place in places:
            names = (*self._prompts.get(keys[place]), *self._prompts.get(dialogue[place]))
            if prompted := self._still_open(names):
                yield 0, prompted

    def _still_open(self, names: Iterable[str]) -> list[str]:
        return [uid for uid in dict.fromkeys(names) if uid in self._open]


def _reply(last: int | None, answer: int) -> int:
    return hash((last, answer))


def _keys(call: Call) -> list[int]:
    """One key for each number of leading messages: 0, 1, ... all."""
    assert call.dialogue is not None
    keys = [0]
    for message in call.dialogue.tolist():
        keys.append(hash((keys[-1], message)))
    return keys
