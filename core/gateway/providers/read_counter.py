"""How much one call has read of a hosted provider, wherever in LiteLLM it is read."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import NoReturn, Self


class Unreadable(Exception):
    """No more of an answer is read."""


class ReadCounter:
    """What one call has read of its provider so far: of all requests that are made inside its block.

    Args:
        most: bytes; None sets no bound.

    Attributes:
        failure: why no more was read, else None. LiteLLM's own errors tell of a broken connection then.
    """

    def __init__(self, most: int | None) -> None:
        self.failure: str | None = None
        self._most = most
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
        """That of the block which this is called in."""
        return _READING.get()

    def add(self, n_bytes: int) -> None:
        """Count. Raises Unreadable."""
        self._n_bytes += n_bytes
        if self._most is not None and self._n_bytes > self._most:
            self.fail(f"its answer is over {self._most} bytes")

    def fail(self, why: str) -> NoReturn:
        """Raise Unreadable."""
        self.failure = why
        raise Unreadable(why)


_READING: ContextVar[ReadCounter | None] = ContextVar("reading", default=None)
