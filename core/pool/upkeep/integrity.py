"""``pool.integrity``: reads steps back, compares them with their hashes, and names their journal records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import duckdb

from core.errors import StudioError
from core.pool.state.backfill import fill_findings
from core.pool.state.derive import rebuild
from core.pool.store.append import prepare, uuid_text
from core.pool.store.database import Database
from core.pool.store.details import read_trajectory
from core.pool.store.writer import Writer
from core.types import Step


class Stored(NamedTuple):
    """A stored step's hash, and the position of its journal record."""

    step_uid: str
    trajectory_uid: str
    content_hash: str
    journal_offset: int


def producer_content_hash(step: Step) -> str:
    """The content hash of a producer's step, as in ``steps.content_hash``."""
    return uuid_text(prepare(step, {}).content)


def _producer_step(step: dict[str, Any]) -> Step:
    return Step(
        step_uid=step["step_uid"],
        trajectory_uid=step["trajectory_uid"],
        prompt_uid=step["prompt_uid"],
        step_index=step["step_index"],
        created_at=0.0,
        model=step["model"],
        finish_reason=step["finish_reason"],
        reward=step["original_reward"],
        status=step["status"],
        source=step["source"],
        prompt_ids=step["prompt_ids"],
        response_ids=step["response_ids"],
        response_logprobs=step["response_logprobs"],
        response_mask=step["response_mask"],
        messages=step["messages"],
        response_message=step["response_message"],
        tools=step["tools"],
    )


class Integrity:
    """``pool.integrity``: the reads of ``claw-studio doctor --deep``, and deriving the whole state again."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._db, self._writer = database, writer

    def damaged_steps(self, trajectory_uid: str) -> Iterator[tuple[str, str]]:
        """(step uid, error) of the steps that can't be restored exactly."""
        with self._db.read() as cursor:
            hashes = dict(
                cursor.execute(
                    "SELECT step_uid, replace(content_hash::VARCHAR, '-', '') FROM steps WHERE trajectory_id IN"
                    " (SELECT trajectory_id FROM trajectories WHERE trajectory_uid = ?)",
                    [trajectory_uid],
                ).fetchall()
            )
            try:
                steps = read_trajectory(cursor, trajectory_uid, tokens=True)["steps"]
            except (duckdb.Error, StudioError, LookupError, TypeError, ValueError) as error:
                for uid in hashes:
                    yield uid, f"can't be read: {error}"
                return
        for step in steps:
            expected = hashes.pop(step["step_uid"], None)
            if expected != producer_content_hash(_producer_step(step)):
                yield step["step_uid"], "its content does not match its hash"
        for uid in hashes:
            yield uid, "has no state: claw-studio can rebuild it"

    def journal_segments(self) -> list[str | None]:
        """Segments that steps came from; None among them when some came without a record."""
        with self._db.read() as cursor:
            segments = cursor.execute("SELECT DISTINCT journal_segment FROM steps ORDER BY 1 NULLS LAST").fetchall()
        return [segment for (segment,) in segments]

    def steps_of_segment(self, segment: str | None) -> list[Stored]:
        """The steps that came from a journal segment, in its order."""
        with self._db.read() as cursor:
            steps = cursor.execute(
                "SELECT s.step_uid, t.trajectory_uid, replace(s.content_hash::VARCHAR, '-', ''),"
                " coalesce(s.journal_offset, -1) FROM steps s JOIN trajectories t USING (trajectory_id)"
                " WHERE s.journal_segment IS NOT DISTINCT FROM ?::VARCHAR ORDER BY s.journal_offset, s.step_id",
                [segment],
            ).fetchall()
        return [Stored(*row) for row in steps]

    def rebuild_state(self) -> None:
        """Derive the effective state again from facts and annotations; the result is what it was.

        The findings of each call are also made again: a newer version of the program may find more.
        """
        with self._writer.writing() as cursor:
            cursor.execute("DELETE FROM step_findings")
            fill_findings(cursor)
            rebuild(cursor)
