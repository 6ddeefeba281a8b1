"""Counts the bytes that one call reads from a hosted provider."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import NoReturn, Self


class Unreadable(Exception):
    """The answer is not read further."""


class ReadCounter:
    """Bytes read by all requests that are made inside this context.

    Args:
        max_bytes: limit in bytes; None means no limit.

    Attributes:
        failure: why reading stopped, else None. LiteLLM itself reports a broken connection then.
    """

    def __init__(self, max_bytes: int | None) -> None:
        self.failure: str | None = None
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._token: Token[ReadCounter | None] | None = None

    def __enter__(self) -> Self:
        self._token = _READING.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _READING.reset(self._token)

    @staticmethod
    def current() -> ReadCounter | None:
        """The counter of the current context."""
        return _READING.get()

    def add(self, n_bytes: int) -> None:
        """Count bytes. Raises Unreadable above the limit."""
        self._n_bytes += n_bytes
        if self._max_bytes is not None and self._n_bytes > self._max_bytes:
            self.fail(f"its answer is over {self._max_bytes} bytes")

    def fail(self, why: str) -> NoReturn:
        """Raise Unreadable."""
        self.failure = why
        raise Unreadable(why)


_READING: ContextVar[ReadCounter | None] = ContextVar("reading", default=None)
