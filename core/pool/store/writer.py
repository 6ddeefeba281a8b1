"""Write transactions with row ids: the next free ids, and the cache of message ids, both restored on failure.

Facts, labels and restored rows are numbered by this process, so a transaction that fails has to give its numbers back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from core.pool.state.feedback_writer import FeedbackWriter
from core.pool.store.append import MessageStore
from core.pool.store.database import Cursor, Database
from core.pool.store.ids import next_ids


class Writer:
    """Write transactions with row numbers.

    Attributes:
        next: table's number -> the next free one.
        messages: which messages are stored.
        feedback: which targets feedback waits for.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self.messages = MessageStore()
        self.feedback = FeedbackWriter()
        self.next: dict[str, int] = {}
        self.read_next_ids()

    @contextmanager
    def writing(self) -> Iterator[Cursor]:
        """``Database.write``; numbers and memories are put right if it fails."""
        with self._db.lock:
            saved = dict(self.next)
            try:
                with self._db.write() as cursor:
                    yield cursor
            except BaseException:
                self.next = saved
                self.forget()
                raise

    def take(self, name: str, n: int = 1) -> int:
        """The first of n new numbers."""
        first = self.next[name]
        self.next[name] = first + n
        return first

    def read_next_ids(self) -> None:
        """Read the next free ids from the file, after rows with given ids were inserted."""
        with self._db.read() as cursor:
            self.next = next_ids(cursor)

    def forget(self) -> None:
        """Drop the caches of messages and waiting feedback, which may be wrong."""
        self.messages.forget()
        self.feedback.forget()
