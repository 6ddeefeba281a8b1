"""``pool.trajectories``: the ordered steps of one attempt, by uid and by pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from core.pool.cache.cache import Cache
from core.pool.query import reads
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import NO_VIEW
from core.pool.store import bookkeeping
from core.pool.store.append import trajectory_ids
from core.pool.store.content import decode
from core.pool.store.database import Database
from core.pool.store.details import read_trajectories, read_trajectory, read_turns
from core.types import View

MOST_AT_ONCE = 64
"""Trajectories that are read with one query."""
MOST_TOKENS = 4 << 20
"""Tokens of these in all, prompts counted whole for each step; a larger trajectory is read alone."""


class Trajectories:
    """``pool.trajectories``: the ordered steps of one attempt each."""

    def __init__(self, database: Database, reader: ViewReader, cache: Cache) -> None:
        self._db, self._reader, self._cache = database, reader, cache

    def get(self, trajectory_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        """One trajectory with its steps in order; without ``tokens``, ids and messages are left out."""
        with self._db.read() as cursor:
            return read_trajectory(cursor, trajectory_uid, tokens=tokens)

    def turns(self, trajectory_uid: str) -> list[dict[str, Any]]:
        """The steps of one trajectory in order, each with only the messages that its prompt adds: ``read_turns``."""
        with self._db.read() as cursor:
            return read_turns(cursor, trajectory_uid)

    def get_many(self, trajectory_uids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Trajectories as ``get`` gives them, in the order given, many with one query.

        Uids that do not exist are left out. What is held at once is bounded by ``MOST_AT_ONCE`` and ``MOST_TOKENS``.
        """
        with self._db.read() as cursor:
            sizes: dict[str, int] = dict(
                cursor.execute(
                    "SELECT trajectory_uid, n_prompt_tokens + n_response_tokens FROM trajectory_state"
                    " WHERE trajectory_uid IN (SELECT unnest(?::VARCHAR[]))",
                    [list(trajectory_uids)],
                ).fetchall()
            )
            for uids in _portions({uid: sizes[uid] for uid in trajectory_uids if uid in sizes}):
                trajectories = read_trajectories(cursor, uids, tokens=True)
                while uids:
                    yield trajectories.pop(uids.pop(0))

    def page(
        self, view: View = NO_VIEW, *, order: str = "started_at desc", limit: int | None = 50, offset: int = 0
    ) -> pa.Table:
        """A page of the trajectories with at least one step of the view."""
        with self._reader.reading(view) as (cursor, seen):
            return reads.list_trajectories(cursor, seen, order, limit, offset)

    def count(self, view: View = NO_VIEW) -> int:
        """Trajectories with at least one step of the view."""
        return self._cache.ask(reads.count_trajectories, view)

    def exists(self, trajectory_uid: str) -> bool:
        """True when the trajectory has a step or was registered or completed."""
        return bool(self.known([trajectory_uid]))

    def known(self, trajectory_uids: Sequence[str]) -> set[str]:
        """Those of these trajectories that have a step or were registered or completed."""
        with self._db.read() as cursor:
            return set(trajectory_ids(cursor, trajectory_uids, None))

    def open_inferred(self, limit: int) -> list[str]:
        """Trajectories whose identity was inferred and that are not complete, latest last."""
        with self._db.read() as cursor:
            uids = cursor.execute(
                "SELECT trajectory_uid FROM trajectory_state WHERE identity_source = 'inferred' AND NOT complete"
                " ORDER BY ended_at DESC, trajectory_id DESC LIMIT ?",
                [limit],
            ).fetchall()
        return [row[0] for row in reversed(uids)]

    def answers(
        self, trajectory_uids: Sequence[str], limit: int
    ) -> list[tuple[str, dict[str, Any] | None, dict[str, Any]]]:
        """(trajectory, last message of the prompt, answer) of steps of these trajectories, in order of arrival.

        Steps without an answer are left out, and so are all but the latest ``limit``. The message is None for a step
        whose whole prompt was sent before.
        """
        if not trajectory_uids:
            return []
        with self._db.read() as cursor:
            answers = cursor.execute(
                "SELECT t.trajectory_uid, asked.body, answered.body"
                " FROM steps s JOIN trajectories t USING (trajectory_id)"
                " JOIN step_messages m USING (step_id)"
                " JOIN messages answered ON answered.message_id = m.response_message_id"
                " LEFT JOIN messages asked ON asked.message_id = m.new_message_ids[-1]"
                " WHERE t.trajectory_uid IN (SELECT unnest(?::VARCHAR[])) ORDER BY s.step_id DESC LIMIT ?",
                [list(trajectory_uids), limit],
            ).fetchall()
        return [
            (uid, None if question is None else decode(question), decode(answer))
            for uid, question, answer in answers[::-1]
        ]

    def of_step(self, step_uid: str) -> str | None:
        """The trajectory of a step; None if there is no such step."""
        with self._db.read() as cursor:
            row = cursor.execute(
                "SELECT trajectory_uid FROM steps JOIN trajectories USING (trajectory_id) WHERE step_uid = ?",
                [step_uid],
            ).fetchone()
        return None if row is None else str(row[0])

    def spent(self, trajectory_uid: str) -> tuple[int, int]:
        """Calls of a trajectory and their tokens, prompt and response."""
        with self._db.read() as cursor:
            return bookkeeping.spent(cursor, trajectory_uid)

    def uids(self) -> list[str]:
        """All trajectories with a step, in order of arrival."""
        with self._db.read() as cursor:
            uids = cursor.execute(
                "SELECT trajectory_uid FROM trajectory_state WHERE n_steps > 0 ORDER BY trajectory_id"
            ).fetchall()
        return [uid for (uid,) in uids]


def _portions(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    """Splits trajectories with their tokens into lists to be read at once."""
    portion: list[str] = []
    n_tokens = 0
    for uid, size in sizes.items():
        if portion and (len(portion) == MOST_AT_ONCE or n_tokens + size > MOST_TOKENS):
            yield portion
            portion, n_tokens = [], 0
        portion.append(uid)
        n_tokens += size
    if portion:
        yield portion
