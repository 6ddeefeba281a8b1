"""A cache of query results, cleared by each write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from cachetools import LRUCache

from core.types import View

MAX_ANSWERS = 256
"""Entries of the cache. They are small: counts, not rows."""

Answer = TypeVar("Answer")


class AnswerCache:
    """Results by query, least recently used first out, cleared by the first write after them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._revision = -1
        self._answers: LRUCache[bytes, Any] = LRUCache(MAX_ANSWERS)

    def get(self, revision: int, question: tuple[Any, ...], ask: Callable[[], Answer]) -> Answer:
        """The cached result, or the result of ``ask``.

        Args:
            revision: the number of writes before ``ask`` opens its snapshot. A result may be newer than its revision,
                never older.
            question: the cache key. Views are compared by value.
            ask: computes the result. It is shared between callers: treat it as immutable.
        """
        key = key_of(question)
        if key is None:
            return ask()
        with self._lock:
            if revision > self._revision:
                self._revision = revision
                self._answers.clear()
            elif revision == self._revision and key in self._answers:
                cached: Answer = self._answers[key]
                return cached
        answer = ask()
        with self._lock:
            if revision == self._revision:
                self._answers[key] = answer
        return answer


def key_of(question: Any) -> bytes | None:
    """The cache key of a query; None if a filter's value has an unsupported type. The query reports that error."""
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
