"""Text search in messages: candidates by trigram Bloom filters, then an exact match; results are cached by text.

Messages never change, so a step that contains a text always does. The steps found are cached by text; a repeated
search, its next page and its facets read only the messages added since. A new text is matched in the messages that
``trigrambloom`` returns as candidates, and in every message that is not indexed yet (``prepare``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from core.pool.query.bloomfile import BloomFile
from core.pool.query.trigrambloom import WINDOW, TrigramBloom, hashes_of
from core.pool.store.content import to_json
from core.pool.store.database import Cursor, arrow, registered

logger = logging.getLogger(__name__)

MAX_ANSWERS = 4
"""Texts whose steps are cached; each takes 8 bytes per message and step found."""
MERGED_BYTES = 12 << 20
"""Bytes of Bloom filters that are merged and moved to disk together."""
MAX_BYTES = 256 << 20
"""Bytes for Bloom filters in memory where the disk has no room for them: enough for 2.6 GiB of messages. Later messages
are searched without an index."""
AT_ONCE = 8 << 20
"""Bytes of messages that are indexed together, about."""
STEPS_AT_ONCE = 500_000
"""Steps whose messages are read together: fewer are read by the search that needs them."""
READ_AT_ONCE = 64 << 20
"""Bytes of messages that are read and matched together, about."""
MAX_READ_SHARE = 0.4
"""If a greater share of the messages are candidates, all are searched: it is quicker."""

_NEWEST = """
SELECT (SELECT coalesce(max(message_id), 0) FROM messages), (SELECT coalesce(max(step_id), 0) FROM step_messages)
"""
HOLDS_TEXT = "regexp_matches({body}, ?, 'i')"
"""Whether a body holds a text, for ``pattern_of`` the text: half the work of ``contains(lower(body), lower(text))``."""

_MESSAGES = f"""
SELECT message_id FROM messages WHERE message_id > ? AND message_id <= ? AND {HOLDS_TEXT.format(body="body")}
"""
# Materialized: otherwise DuckDB would match every message before the join with the named ones.
_NAMED = f"""
WITH named AS MATERIALIZED (SELECT message_id, body FROM messages SEMI JOIN named_messages USING (message_id))
SELECT message_id FROM named WHERE {HOLDS_TEXT.format(body="body")}
"""
_BODIES = "SELECT message_id, body FROM messages WHERE message_id > ? AND message_id <= ? ORDER BY message_id"
_NEXT = "SELECT min(message_id) FROM messages WHERE message_id > ?"
_ADDED = """
SELECT step_id, new_message_ids, response_message_id FROM step_messages WHERE step_id > ? AND step_id <= ?
ORDER BY step_id
"""


def escaped(text: str) -> str:
    """The text as it is spelled inside a JSON body."""
    return to_json(text).decode("utf-8")[1:-1]


def pattern_of(text: str) -> str:
    """The regular expression that matches exactly this text as it is spelled inside a JSON body."""
    return "".join(each if each.isalnum() or each in " _" or ord(each) > 127 else f"\\{each}" for each in escaped(text))


@dataclass(frozen=True, slots=True)
class Hits:
    """In place of a searched text: the table registered with the cursor that names the steps (``step_id``)."""

    table: str


@dataclass(slots=True)
class _CachedText:
    message_id: int
    step_id: int
    messages: np.ndarray
    steps: np.ndarray


@dataclass(slots=True)
class _StepMessages:
    """Pairs of step and message that the step added: int32 arrays of equal length, steps ascending, to ``step_id``."""

    step_id: int
    steps: np.ndarray
    messages: np.ndarray

    def grow(self, cursor: Cursor, step_id: int) -> None:
        """Add the steps up to this one."""
        if step_id <= self.step_id:
            return
        table = arrow(cursor, _ADDED, [self.step_id, step_id])
        ids = table["step_id"].to_numpy().astype(np.int32)
        lists = table["new_message_ids"].combine_chunks()
        offsets = lists.offsets.to_numpy()
        counts = np.where(lists.is_valid().to_numpy(zero_copy_only=False), np.diff(offsets), 0)
        answers = table["response_message_id"].combine_chunks()
        answered = answers.is_valid().to_numpy(zero_copy_only=False)
        steps = np.concatenate([self.steps, np.repeat(ids, counts), ids[answered]])
        brought = [self.messages, lists.flatten().to_numpy(), answers.drop_null().to_numpy()]
        order = np.argsort(steps, kind="stable")
        self.steps = steps[order]
        self.messages = np.concatenate([each.astype(np.int32) for each in brought])[order]
        self.step_id = step_id

    def steps_with(self, messages: np.ndarray, after: int) -> np.ndarray:
        """int64, ascending: steps after this one that added one of these messages."""
        begin = int(np.searchsorted(self.steps, after, side="right"))
        messages_after = self.messages[begin:]
        if not messages_after.size or not messages.size:
            return np.zeros(0, np.int64)
        is_hit = np.zeros(max(int(messages_after.max()), int(messages.max())) + 1, bool)
        is_hit[messages] = True
        return np.unique(self.steps[begin:][is_hit[messages_after]]).astype(np.int64)


class TextSearch:
    """The text search index, and the steps of the latest searched texts. Thread-safe.

    Args:
        folder: where the index may write (``bloomfile``); None: the folder of temporary files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._known: LRUCache[str, _CachedText] = LRUCache(MAX_ANSWERS)
        self._step_messages = _StepMessages(0, np.zeros(0, np.int32), np.zeros(0, np.int32))
        self._making = threading.Lock()
        self._blooms: tuple[TrigramBloom, ...] = ()
        self._n_merged = 0
        self._folder = folder
        self._file: BloomFile | None = None
        self._can_merge = True
        self._messages_at_once = 256

    @property
    def n_bytes(self) -> int:
        """Bytes in memory of the Bloom filters and of the pairs of step and message."""
        return self._unmerged_bytes + self._step_messages.steps.nbytes * 2

    @property
    def _unmerged_bytes(self) -> int:
        return sum(bloom.n_bytes for bloom in self._blooms[self._n_merged :])

    def prepare(self, cursor: Cursor) -> bool:
        """Index the next messages, if there are enough, or which steps brought them; whether anything was done.

        Some 50 ms of one core.
        """
        with self._making:
            newest, newest_step = cursor.execute(_NEWEST).fetchall()[0]
            after = self._blooms[-1].last if self._blooms else 0
            upto = after + self._messages_at_once
            if newest < upto or self._unmerged_bytes >= MAX_BYTES:
                return self._read_steps(cursor, newest_step)
            messages = arrow(cursor, _BODIES, [after, upto])
            if not messages.num_rows:  # deleted, all of them
                upto = cursor.execute(_NEXT, [upto]).fetchall()[0][0]
                messages = arrow(cursor, _BODIES, [upto - 1, upto])
            bloom = TrigramBloom.of(messages["message_id"].to_numpy(), messages["body"])
            n_messages = AT_ONCE * messages.num_rows // max(1, messages["body"].nbytes)
            self._messages_at_once = min(max(n_messages, 64), 1 << 16, 2 * self._messages_at_once)
            self._blooms = (*self._blooms, bloom)
            if self._can_merge and self._unmerged_bytes >= MERGED_BYTES:
                self._merge()
            return True

    def _read_steps(self, cursor: Cursor, newest: int) -> bool:
        with self._lock:
            read = self._step_messages.step_id
            if newest - read < STEPS_AT_ONCE:
                return False
            self._step_messages.grow(cursor, read + STEPS_AT_ONCE)
            return True

    def _merge(self) -> None:
        """Move the filters in memory to disk; if the disk has no room, they and later ones stay in memory."""
        kept, recent = self._blooms[: self._n_merged], self._blooms[self._n_merged :]
        try:
            self._file = self._file or BloomFile(self._folder)
            self._blooms = (*kept, self._file.merged(recent))
        except OSError as error:
            self._can_merge = False
            logger.warning("text search: the index stays in memory, limited to %d MiB: %s", MAX_BYTES >> 20, error)
        else:
            self._n_merged += 1

    def steps(self, cursor: Cursor, text: str) -> pa.Table:
        """``step_id`` of the steps that brought a message with this text or answered with it; case is ignored.

        It may contain steps that are newer than the cursor's snapshot: join it with the cursor's steps.
        """
        pattern = pattern_of(text)
        newest_message, newest_step = cursor.execute(_NEWEST).fetchall()[0]
        with self._lock:
            known = self._known.get(pattern) or _CachedText(0, 0, np.zeros(0, np.int64), np.zeros(0, np.int64))
            if newest_message > known.message_id:
                new_messages = self._messages(cursor, text, known.message_id, newest_message)
                known.messages = np.concatenate([known.messages, *new_messages])
                known.message_id = newest_message
            if newest_step > known.step_id:
                self._step_messages.grow(cursor, newest_step)
                steps = self._step_messages.steps_with(known.messages, known.step_id)
                known.steps = np.concatenate([known.steps, steps])
                known.step_id = newest_step
            self._known[pattern] = known
            return pa.table({"step_id": known.steps})

    def _messages(self, cursor: Cursor, text: str, after: int, upto: int) -> Iterator[np.ndarray]:
        """``message_id`` of the messages from ``after`` (exclusive) to ``upto`` that hold the text."""
        pattern = pattern_of(text)
        blooms = [each for each in self._blooms if each.last > after]
        may_hold = _may_hold(blooms, text)
        if may_hold is not None:
            for named in may_hold:
                with registered(cursor, named_messages=pa.table({"message_id": named[named > after]})):
                    yield arrow(cursor, _NAMED, [pattern])["message_id"].to_numpy()
            after = blooms[-1].last
        yield arrow(cursor, _MESSAGES, [after, upto, pattern])["message_id"].to_numpy()


def _may_hold(blooms: Sequence[TrigramBloom], text: str) -> list[np.ndarray] | None:
    """``message_id`` of all that may contain a text, in parts to read; None if the filters exclude too few."""
    wanted = hashes_of(escaped(text))
    if not blooms or not wanted.size:
        return None
    windows = [each.windows(wanted) for each in blooms]
    n_windows = sum(hits.size for hits in windows)
    if n_windows > MAX_READ_SHARE * sum(each.firsts.size - 1 for each in blooms):
        return None
    if not n_windows:
        return []
    first = np.concatenate([each.firsts[hits] for each, hits in zip(blooms, windows, strict=True)])
    last = np.concatenate([each.firsts[hits + 1] for each, hits in zip(blooms, windows, strict=True)])
    counts = last - first + 1
    begins = np.cumsum(counts) - counts
    named = np.unique(np.repeat(first - begins, counts) + np.arange(int(counts.sum())))
    return np.array_split(named, -(-n_windows * WINDOW // READ_AT_ONCE))
