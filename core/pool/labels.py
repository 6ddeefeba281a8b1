"""``pool.labels``: labels on steps and trajectories, appended, undone and redone. They take effect at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from core.errors import InvalidInput
from core.pool.query import reads
from core.pool.query.viewreader import ViewReader
from core.pool.query.views import compile_view, source_sql
from core.pool.state import opinions
from core.pool.state.relabel import relabel
from core.pool.store.database import Cursor, Database, timestamp
from core.pool.store.writer import Writer
from core.types import Annotation, View


class Labels:
    """``pool.labels``: labels by people and programs on steps and trajectories, and their history."""

    def __init__(self, database: Database, writer: Writer, reader: ViewReader) -> None:
        self._db, self._writer, self._reader = database, writer, reader

    def annotate(self, annotations: Sequence[Annotation], *, label: str | None = None) -> str:
        """Append opinions as one entry of the history, all or nothing; returns its ``action_uid``.

        NotFound names the uid that does not exist, InvalidInput the value that does not fit its kind.
        """
        (action_uid,) = self.annotate_each([annotations], label=label)
        return action_uid

    def annotate_each(self, groups: Sequence[Sequence[Annotation]], *, label: str | None = None) -> list[str]:
        """``annotate`` for each group, by one transaction: all groups or none; returns their ``action_uid``s."""
        with self._writer.writing() as cursor:
            actions: list[tuple[int, str]] = []
            for annotations in groups:
                first_id = self._writer.take("annotation_id", len(annotations))
                action_id = self._writer.take("action_id")
                actions.append((action_id, self._append(cursor, annotations, label, action_id, first_id)))
            action_ids = [action_id for action_id, _ in actions]
            relabel(cursor, action_ids)
            self._db.touch(actions=action_ids)
        return [action_uid for _, action_uid in actions]

    @contextmanager
    def previewing(self, annotations: Sequence[Annotation]) -> Iterator[None]:
        """Inside the block, what this thread reads by ``pool.training`` is as after ``annotate``. Raises as that.

        It is the very write, rolled back at the end. Other writers wait meanwhile.
        """
        with self._db.dry_run() as cursor:
            action_id = self._writer.next["action_id"]
            self._append(cursor, annotations, None, action_id, self._writer.next["annotation_id"])
            relabel(cursor, [action_id])
            yield

    def annotate_view(
        self,
        view: View,
        target: str,
        kind: str,
        value: Any,
        *,
        author: str,
        source: str,
        note: str | None = None,
        label: str | None = None,
    ) -> tuple[str, int]:
        """The same opinion on everything a view matches, not only on a page of it: (action_uid, how many)."""
        with self._writer.writing() as cursor:
            action_id, first_id = self._writer.take("action_id"), self._writer.next["annotation_id"]
            annotation = Annotation(kind, value, author, source, self._db.clock(), note=note)
            action_uid, n = self._append_to_view(cursor, view, target, annotation, label, action_id, first_id)
            self._writer.take("annotation_id", n)
            self._db.touch(actions=[action_id])
        return action_uid, n

    @contextmanager
    def previewing_view(self, view: View, target: str, kind: str, value: Any, *, source: str) -> Iterator[int]:
        """As ``previewing``, of ``annotate_view``; gives how many it is about."""
        with self._db.dry_run() as cursor:
            annotation = Annotation(kind, value, "preview", source, self._db.clock())
            next_ids = self._writer.next
            numbers = next_ids["action_id"], next_ids["annotation_id"]
            yield self._append_to_view(cursor, view, target, annotation, None, *numbers)[1]

    def _append(
        self, cursor: Cursor, annotations: Sequence[Annotation], label: str | None, action_id: int, first_id: int
    ) -> str:
        if not annotations:
            raise InvalidInput("No annotations.", field="annotations")
        targets = opinions.resolve_targets(cursor, annotations)
        opinions.insert_annotations(cursor, annotations, targets, action_id=action_id, first_id=first_id)
        n, author = len(annotations), annotations[0].author
        action_uid = opinions.add_action(
            cursor, action_id=action_id, label=label, author=author, n=n, now=self._db.clock()
        )
        return action_uid

    def _append_to_view(
        self,
        cursor: Cursor,
        view: View,
        target: str,
        annotation: Annotation,
        label: str | None,
        action_id: int,
        first_id: int,
    ) -> tuple[str, int]:
        if target not in ("step", "trajectory"):
            raise InvalidInput("The target is 'step' or 'trajectory'.", field="target")
        number, text = opinions.encode_value(annotation.kind, annotation.value)
        # A step comes once; a trajectory as often as the view has steps of it.
        columns = (
            "s.trajectory_id, s.step_id" if target == "step" else "DISTINCT s.trajectory_id, NULL::BIGINT AS step_id"
        )
        with self._reader.resolved(cursor, view) as seen, reads.explained(view):
            condition = compile_view(seen)
            n = cursor.execute(
                f"""
                INSERT INTO annotations
                SELECT ? + row_number() OVER (ORDER BY trajectory_id, step_id) - 1, ?, trajectory_id, step_id,
                    ?, ?, ?, ?, ?, ?, ?
                FROM (SELECT {columns} {source_sql(condition)})
                """,
                [
                    first_id, action_id, annotation.kind, number, text, annotation.author, annotation.source,
                    annotation.note, timestamp(annotation.created_at), *condition.parameters,
                ],
            ).fetchone()[0]  # fmt: skip
        action_uid = opinions.add_action(
            cursor, action_id=action_id, label=label, author=annotation.author, n=n, now=annotation.created_at
        )
        relabel(cursor, [action_id])
        return action_uid, n

    def undo(self, action_uid: str) -> None:
        """Take an action's annotations out of the effective state; nothing is deleted. Twice is once."""
        self._switch(action_uid, "undo")

    def redo(self, action_uid: str) -> None:
        """Let an undone action count again, at its old place in the order."""
        self._switch(action_uid, "redo")

    def _switch(self, action_uid: str, event: str) -> None:
        with self._writer.writing() as cursor:
            action_id = opinions.switch_action(cursor, action_uid, event, self._db.clock())
            if action_id is not None:
                relabel(cursor, [action_id])
            self._db.touch(actions=[] if action_id is None else [action_id])

    def annotations(self, *, step_uid: str | None = None, trajectory_uid: str | None = None) -> list[dict[str, Any]]:
        """Every opinion, oldest first, the undone ones marked ``undone``."""
        with self._db.read() as cursor:
            return opinions.list_annotations(cursor, step_uid, trajectory_uid)

    def actions(self, limit: int = 50) -> list[dict[str, Any]]:
        """The history of annotations, newest first."""
        with self._db.read() as cursor:
            return opinions.list_actions(cursor, limit)
