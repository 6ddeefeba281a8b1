"""Looking through many trajectories at once: each distinct text one time, and only those that may hold something."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from core.pool.database import Cursor, Database, arrow, registered
from core.pool.media import put_back

MESSAGES_AT_ONCE = 200_000
TRAJECTORIES_AT_ONCE = 200

_SCREENED = """
CREATE OR REPLACE TEMP TABLE screened AS
SELECT trajectory_id, trajectory_uid FROM trajectories SEMI JOIN screened_uids USING (trajectory_uid)
"""
_MESSAGES = """
CREATE OR REPLACE TEMP TABLE screened_messages AS
SELECT DISTINCT unnest(new_message_ids) AS message_id FROM step_messages SEMI JOIN screened USING (trajectory_id)
UNION SELECT response_message_id FROM step_messages SEMI JOIN screened USING (trajectory_id)
UNION SELECT tools_id FROM step_messages SEMI JOIN screened USING (trajectory_id)
"""
_BODIES = """
SELECT message_id, replace(content_hash::VARCHAR, '-', ''), body FROM messages
WHERE message_id > $after AND message_id <= $upto AND ($may::VARCHAR IS NULL OR regexp_matches(body, $may))
    AND message_id IN (SELECT message_id FROM screened_messages)
"""
_SAYING = """
SELECT DISTINCT trajectory_uid FROM (
    SELECT trajectory_id, unnest(new_message_ids) AS message_id FROM step_messages
    UNION ALL SELECT trajectory_id, response_message_id FROM step_messages
    UNION ALL SELECT trajectory_id, tools_id FROM step_messages
) SEMI JOIN hit_messages USING (message_id) JOIN screened USING (trajectory_id)
"""
_METADATA = """
SELECT DISTINCT trajectory_uid, metadata FROM steps JOIN screened USING (trajectory_id)
WHERE metadata IS NOT NULL AND ($may::VARCHAR IS NULL OR regexp_matches(metadata, $may))
"""
_STEPS = """
SELECT trajectory_uid, step_uid, tokenizer_hash,
    n_prompt_tokens IS NOT NULL OR n_response_tokens IS NOT NULL AS has_ids,
    new_message_ids IS NOT NULL AS has_messages,
    new_message_ids IS NOT NULL OR response_message_id IS NOT NULL AS has_text
FROM steps JOIN screened USING (trajectory_id) JOIN step_messages m USING (step_id)
"""
_TOKENS = """
SELECT c.trajectory_uid, f.tokenizer_hash, k.prompt_suffix, k.response_ids
FROM step_tokens k JOIN steps f USING (step_id) JOIN screened c ON c.trajectory_id = k.trajectory_id
WHERE f.tokenizer_hash IS NOT NULL
"""

Hit = Callable[[str], bool]
"""Whether a JSON text holds what is looked for."""


class Screening:
    """The part of ``Pool`` that looks through many trajectories at once."""

    _db: Database

    def trajectories_saying(self, trajectory_uids: Sequence[str], hit: Hit, *, may: str | None) -> set[str]:
        """Those of these trajectories in whose messages, tools or metadata ``hit`` finds something.

        Args:
            hit: asked of each distinct message body, and of the metadata.
            may: a regular expression (RE2) that every stored text with a hit matches; only such texts are read.
                None: every text is.
        """
        with self._screened(trajectory_uids) as cursor:
            cursor.execute(_MESSAGES)
            newest = cursor.execute("SELECT coalesce(max(message_id), 0) FROM screened_messages").fetchall()[0][0]
            found: list[int] = []
            for after in range(0, newest, MESSAGES_AT_ONCE):
                bound = {"after": after, "upto": after + MESSAGES_AT_ONCE, "may": may}
                bodies = put_back(cursor, cursor.execute(_BODIES, bound).fetchall())
                found += [number for number, body in bodies.items() if hit(body)]
            said = {uid for uid, text in cursor.execute(_METADATA, {"may": may}).fetchall() if hit(text)}
            with registered(cursor, hit_messages=pa.table({"message_id": pa.array(found, pa.int64())})):
                return said | {uid for (uid,) in cursor.execute(_SAYING).fetchall()}

    def screened_steps(self, trajectory_uids: Sequence[str]) -> pa.Table:
        """What is known of the steps: trajectory_uid, step_uid, tokenizer_hash, has_ids, has_messages, has_text."""
        with self._screened(trajectory_uids) as cursor:
            return arrow(cursor, _STEPS)

    def screened_tokens(self, trajectory_uids: Sequence[str]) -> Iterator[pa.Table]:
        """Tokens of the steps whose tokenizer is known, some trajectories at a time.

        Columns trajectory_uid, tokenizer_hash, prompt_suffix (what its parent doesn't have), response_ids.
        """
        for first in range(0, len(trajectory_uids), TRAJECTORIES_AT_ONCE):
            with self._screened(trajectory_uids[first : first + TRAJECTORIES_AT_ONCE]) as cursor:
                yield arrow(cursor, _TOKENS)

    @contextmanager
    def _screened(self, trajectory_uids: Sequence[str]) -> Iterator[Cursor]:
        uids = pa.table({"trajectory_uid": pa.array(trajectory_uids, pa.string())})
        with self._db.read() as cursor:
            with registered(cursor, screened_uids=uids):
                cursor.execute(_SCREENED)
            yield cursor
