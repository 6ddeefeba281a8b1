"""Text search in messages: the text is looked for once, and then only in what is new.

Messages never change, so a step that brought a text always will have. Steps found stay in memory by text; asking again,
or the next page, or a facet of the same search, reads only messages that came since.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from core.pool.content import to_json
from core.pool.database import Cursor, arrow, registered

N_KEPT = 4
"""Texts whose steps are kept; each takes 8 bytes per message and step found."""

_NEWEST = """
SELECT (SELECT coalesce(max(message_id), 0) FROM messages), (SELECT coalesce(max(step_id), 0) FROM step_messages)
"""
HOLDS = "regexp_matches({body}, ?, 'i')"
"""Whether a body holds a text, for ``pattern_of`` the text: half the work of ``contains(lower(body), lower(text))``."""

_MESSAGES = f"""
SELECT message_id FROM messages WHERE message_id > ? AND message_id <= ? AND {HOLDS.format(body="body")}
"""
_STEPS = """
SELECT step_id FROM (
    SELECT step_id, unnest(new_message_ids) AS message_id FROM step_messages WHERE step_id > $after
) SEMI JOIN text_messages USING (message_id)
UNION
SELECT step_id FROM step_messages
WHERE step_id > $after AND response_message_id IN (SELECT message_id FROM text_messages)
"""


def pattern_of(text: str) -> str:
    """The regular expression that finds exactly this text as it stands inside a JSON body."""
    escaped = to_json(text).decode("utf-8")[1:-1]
    return "".join(each if each.isalnum() or each in " _" or ord(each) > 127 else f"\\{each}" for each in escaped)


@dataclass(frozen=True, slots=True)
class Hits:
    """In place of a searched text: the table registered with the cursor that names the steps (``step_id``)."""

    table: str


@dataclass(slots=True)
class _Known:
    message_id: int
    step_id: int
    messages: np.ndarray
    steps: np.ndarray


class TextSearch:
    """Steps by the texts that were asked for last. Safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def steps(self, cursor: Cursor, text: str) -> pa.Table:
        """``step_id`` of the steps that brought a message with this text or answered with it; case is ignored.

        May name steps that came after the cursor's snapshot: join it with what the cursor sees.
        """
        pattern = pattern_of(text)
        newest_message, newest_step = cursor.execute(_NEWEST).fetchall()[0]
        with self._lock:
            known = self._known.get(pattern) or _Known(0, 0, np.zeros(0, np.int64), np.zeros(0, np.int64))
            if newest_message > known.message_id:
                found = arrow(cursor, _MESSAGES, [known.message_id, newest_message, pattern])["message_id"]
                known.messages = np.concatenate([known.messages, found.to_numpy()])
                known.message_id = newest_message
            if newest_step > known.step_id:
                with registered(cursor, text_messages=pa.table({"message_id": known.messages})):
                    steps = arrow(cursor, _STEPS, {"after": known.step_id})["step_id"]
                known.steps = np.concatenate([known.steps, steps.to_numpy()])
                known.step_id = newest_step
            self._known[pattern] = known
            self._known.move_to_end(pattern)
            if len(self._known) > N_KEPT:
                self._known.popitem(last=False)
            return pa.table({"step_id": known.steps})
