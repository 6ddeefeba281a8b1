"""Screens many trajectories for redaction hits: each distinct text once, and only texts that may contain a hit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from core.pool.redaction.cleaning import AT_BORDER
from core.pool.store.database import Cursor, Database, arrow, registered
from core.pool.store.media import restore_media

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
_TRAJECTORIES_WITH_HIT = """
SELECT DISTINCT trajectory_uid FROM (
    SELECT trajectory_id, unnest(new_message_ids) AS message_id FROM step_messages
    UNION ALL SELECT trajectory_id, response_message_id FROM step_messages
    UNION ALL SELECT trajectory_id, tools_id FROM step_messages
) SEMI JOIN hit_messages USING (message_id) JOIN screened USING (trajectory_id)
"""
_OTHER_TEXTS = """
SELECT DISTINCT trajectory_uid, text FROM (
    SELECT trajectory_uid,
        unnest([metadata, sampling, to_json(error)::VARCHAR, to_json(finish_reason)::VARCHAR]) AS text
    FROM steps JOIN screened USING (trajectory_id)
) WHERE text IS NOT NULL AND ($may::VARCHAR IS NULL OR regexp_matches(text, $may))
"""
# Messages that follow each other: those that are new to a step, the one before them, and the answer. Where the one
# before is not its parent's answer or last message, NULL stands for it.
_PAIRS = """
CREATE OR REPLACE TEMP TABLE screened_pairs AS
WITH chains AS (
    SELECT c.trajectory_uid, list_concat(
        CASE WHEN f.n_shared_messages = 0 THEN []
            WHEN f.n_shared_messages = g.n_messages + 1 THEN [b.response_message_id]
            WHEN f.n_shared_messages = g.n_messages THEN [list_last(b.new_message_ids)] ELSE [NULL] END,
        coalesce(m.new_message_ids, []),
        CASE WHEN m.response_message_id IS NULL THEN [] ELSE [m.response_message_id] END
    ) AS chain
    FROM step_messages m JOIN steps f USING (step_id) JOIN screened c ON c.trajectory_id = m.trajectory_id
    LEFT JOIN step_messages b ON b.step_id = f.parent_step_id LEFT JOIN steps g ON g.step_id = f.parent_step_id
)
SELECT DISTINCT trajectory_uid, pair[1] AS first_id, pair[2] AS second_id
FROM (SELECT trajectory_uid, unnest(list_zip(chain[:-2], chain[2:])) AS pair FROM chains)
"""
_BORDER_BODIES = """
SELECT p.first_id, p.second_id, any_value(a.body), any_value(b.body)
FROM screened_pairs p JOIN messages a ON a.message_id = p.first_id JOIN messages b ON b.message_id = p.second_id
WHERE p.first_id > $after AND p.first_id <= $upto AND (
    $may::VARCHAR IS NULL OR json_type(a.body, '$.content') = 'ARRAY' OR json_type(b.body, '$.content') = 'ARRAY'
    OR regexp_matches(right(a.body ->> '$.content', $border) || left(b.body ->> '$.content', $border), $may)
)
GROUP BY ALL
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
"""Whether a JSON text has a hit."""


class Screening:
    """``pool.screening``: searches many trajectories at once."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def trajectories_with_hit(self, trajectory_uids: Sequence[str], hit: Hit, *, may: str | None) -> set[str]:
        """The trajectories with a hit in their messages, tools, metadata or sampling.

        Args:
            hit: called with each distinct message body, and with the metadata.
            may: a regular expression (RE2) that every stored text with a hit matches; only such texts are read.
                None: every text is.
        """
        with self._screened(trajectory_uids) as cursor:
            cursor.execute(_MESSAGES)
            newest = cursor.execute("SELECT coalesce(max(message_id), 0) FROM screened_messages").fetchall()[0][0]
            message_ids: list[int] = []
            for after in range(0, newest, MESSAGES_AT_ONCE):
                bound = {"after": after, "upto": after + MESSAGES_AT_ONCE, "may": may}
                bodies = restore_media(cursor, cursor.execute(_BODIES, bound).fetchall())
                message_ids += [number for number, body in bodies.items() if hit(body)]
            uids = {uid for uid, text in cursor.execute(_OTHER_TEXTS, {"may": may}).fetchall() if hit(text)}
            with registered(cursor, hit_messages=pa.table({"message_id": pa.array(message_ids, pa.int64())})):
                return uids | {uid for (uid,) in cursor.execute(_TRAJECTORIES_WITH_HIT).fetchall()}

    def trajectories_with_border_hit(
        self, trajectory_uids: Sequence[str], hit: Callable[[str, str], bool], *, may: str | None
    ) -> set[str]:
        """Those of these trajectories in which ``hit`` finds something over the border of two messages.

        Args:
            hit: called with each distinct pair of consecutive bodies.
            may: as in ``trajectories_with_hit``, of the text around the border.
        """
        with self._screened(trajectory_uids) as cursor:
            cursor.execute(_PAIRS)
            newest = cursor.execute("SELECT coalesce(max(first_id), 0) FROM screened_pairs").fetchall()[0][0]
            id_pairs: list[tuple[int, int]] = []
            for after in range(0, newest, MESSAGES_AT_ONCE):
                bound = {"after": after, "upto": after + MESSAGES_AT_ONCE, "may": may, "border": AT_BORDER}
                rows = cursor.execute(_BORDER_BODIES, bound).fetchall()
                id_pairs += [(first, second) for first, second, *bodies in rows if hit(*bodies)]
            pairs = pa.table(
                {
                    "first_id": pa.array([first for first, _ in id_pairs], pa.int64()),
                    "second_id": pa.array([second for _, second in id_pairs], pa.int64()),
                }
            )
            with registered(cursor, hit_pairs=pairs):
                rows = cursor.execute(
                    "SELECT trajectory_uid FROM screened_pairs SEMI JOIN hit_pairs USING (first_id, second_id) "
                    "UNION SELECT trajectory_uid FROM screened_pairs WHERE first_id IS NULL OR second_id IS NULL"
                ).fetchall()
            return {uid for (uid,) in rows}

    def steps(self, trajectory_uids: Sequence[str]) -> pa.Table:
        """Columns of the steps: trajectory_uid, step_uid, tokenizer_hash, has_ids, has_messages, has_text."""
        with self._screened(trajectory_uids) as cursor:
            return arrow(cursor, _STEPS)

    def tokens(self, trajectory_uids: Sequence[str]) -> Iterator[pa.Table]:
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
