"""Answers kept while nothing is written: a page drawn again asks the same again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from cachetools import LRUCache

from core.types import View

N_KEPT = 256
"""Answers kept; they are small: counts, not rows."""

Answer = TypeVar("Answer")


class Kept:
    """The newest answers by question, forgotten with the first write after them. Safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revision = -1
        self._answers: LRUCache[bytes, Any] = LRUCache(N_KEPT)

    def get(self, revision: int, question: tuple[Any, ...], ask: Callable[[], Answer]) -> Answer:
        """The kept answer, else what ``ask`` says.

        Args:
            revision: number of writes when the question was put, read before ``ask`` opens its snapshot: an answer
                may so be newer than it says, and never older.
            question: what tells it from others; views are compared by value.
            ask: computes it. The answer is shared: treat it as immutable.
        """
        key = key_of(question)
        if key is None:
            return ask()
        with self._lock:
            if revision > self._revision:
                self._revision = revision
                self._answers.clear()
            elif revision == self._revision and key in self._answers:
                found: Answer = self._answers[key]
                return found
        answer = ask()
        with self._lock:
            if revision == self._revision:
                self._answers[key] = answer
        return answer


def key_of(question: Any) -> bytes | None:
    """What tells a question from others; None for a filter's value of an odd type: the query says what is wrong."""
    try:
        return orjson.dumps(question, default=_plain, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, View):
        return {"filters": dict(value.filters), "where": value.where}
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    raise TypeError(f"{type(value).__name__} can't be compared by value.")
