"""``pool.edits``: answers that people edited, for supervised fine-tuning and for pairs with the original.

An edit is an annotation of a step (kind ``edit``): it is appended, can be undone and redone like any other, and never
changes the captured step. Of each step the newest edit that is not undone is in force. Plans and exports refer to an
edited answer by the edit's uid, as if it were a step of a trajectory of its own: the captured prompt, then the edited
answer. ``EDIT_UID`` followed by ``ORIGINAL`` refers to the captured step in the same way, for the rejected side of a
pair. Such references stay valid when an edit is undone, so that plans of leased batches do not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from core.errors import NotFound
from core.pool.state.editvalue import EDIT_UID
from core.pool.store.content import decode
from core.pool.store.database import Cursor, Database, registered, rows, seconds
from core.tree.sequences import Int32, Sequences
from core.types import TokenSource

ORIGINAL = "-original"
"""Follows an edit's uid in references to the captured answer."""
EDIT_PREFIX = "edit-"
_REFERENCE = re.compile(rf"({EDIT_UID.pattern})({ORIGINAL})?")
_SAMPLED = ("logprobs", "teacher_logprobs", "value", "token_values", "temperature", "baseline")
"""Fields of a step that are about its sampled tokens."""

_EDITS = """
SELECT a.annotation_id, s.step_uid, a.value_text, a.author, a.source, a.note, a.created_at, x.action_uid,
    coalesce((SELECT arg_max(event, event_id) FROM action_events e WHERE e.action_id = a.action_id), 'redo') = 'undo'
        AS undone
FROM annotations a
JOIN actions x USING (action_id)
JOIN steps s ON s.step_id = a.step_id
WHERE a.kind = 'edit' AND {condition}
ORDER BY a.annotation_id
"""
# The texts of other kinds are no JSON.
_UID = "CASE WHEN a.kind = 'edit' THEN json_extract_string(a.value_text, '$.edit_uid') END"


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """One edit of a step's answer.

    Attributes:
        edit_uid: its name; None: the annotation withdraws earlier edits.
        step_uid: the step whose answer it is about.
        message: the edited answer, an assistant message.
        response_ids: int32 [R], the token ids of ``text``.
        text: the answer as the chat template writes it, its end-of-turn token included.
        tokenizer_hash, template_hash: what the ids were made with.
        author, source, note, created_at: of the annotation; UTC seconds.
        action_uid: its entry in the history, for undo and redo.
        undone: whether it was undone.
    """

    edit_uid: str | None
    step_uid: str
    message: Mapping[str, Any]
    response_ids: Int32
    text: str
    tokenizer_hash: str | None
    template_hash: str | None
    author: str
    source: str
    note: str | None
    created_at: float
    action_uid: str
    undone: bool


class Edits:
    """``pool.edits``: edited answers. ``core.editing`` makes them, ``pool.labels`` stores, undoes and redoes them."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def in_force(self) -> list[Edit]:
        """The edits that count now, one per step at most, in the order in which they were made."""
        with self._db.read() as cursor:
            return in_force(cursor)

    def of_step(self, step_uid: str) -> list[Edit]:
        """Every edit of a step, oldest first, undone and withdrawn ones too."""
        with self._db.read() as cursor:
            return _read(cursor, "s.step_uid = ?", [step_uid])

    def current(self, step_uid: str) -> Edit | None:
        """The edit of a step that counts now."""
        active = [one for one in self.of_step(step_uid) if not one.undone]
        return active[-1] if active and active[-1].edit_uid is not None else None

    def named(self, uids: Iterable[str]) -> dict[str, Edit]:
        """The edits that these references are about, by reference; uids of steps are left out.

        Raises:
            NotFound: an edit was deleted with its trajectory.
        """
        references = {
            uid: match[1] for uid in uids if uid.startswith(EDIT_PREFIX) and (match := _REFERENCE.fullmatch(uid))
        }
        if not references:
            return {}
        wanted = pa.table({"uid": pa.array(sorted(set(references.values())), pa.string())})
        with self._db.read() as cursor, registered(cursor, wanted_edits=wanted):
            edits = _read(cursor, f"{_UID} IN (SELECT uid FROM wanted_edits)", [])
        by_uid = {one.edit_uid: one for one in edits}
        for uid in references.values():
            if uid not in by_uid:
                raise NotFound(f"No edit {uid!r}.", field="edit_uid")
        return {reference: by_uid[uid] for reference, uid in references.items()}

    def captured_step(self, uid: str) -> str:
        """The step that a uid of a plan is about: itself, or the step that was edited. NotFound as ``named``."""
        edit = self.named([uid]).get(uid)
        return uid if edit is None else edit.step_uid

    def get(self, edit_uid: str) -> Edit:
        """One edit by its uid, or by a reference to its original. NotFound when there is none."""
        edits = self.named([edit_uid])
        if not edits:
            raise NotFound(f"No edit {edit_uid!r}.", field="edit_uid")
        return edits[edit_uid]


def in_force(cursor: Cursor) -> list[Edit]:
    """The newest edit of each step that is not undone or withdrawn, in the order of making."""
    newest = {one.step_uid: one for one in _read(cursor, "TRUE", []) if not one.undone}
    return [one for one in newest.values() if one.edit_uid is not None]


def of_version(cursor: Cursor, version_id: int) -> list[Edit]:
    """The edits that a dataset version holds, in the order of making."""
    return _read(cursor, f"{_UID} IN (SELECT edit_uid FROM dataset_edits WHERE version_id = ?)", [version_id])


def is_original(reference: str) -> bool:
    """Whether a reference to an edit is about the captured answer."""
    return reference.endswith(ORIGINAL)


def is_reference(uid: str) -> bool:
    """Whether a uid has the form of a reference to an edit."""
    return _REFERENCE.fullmatch(uid) is not None


def _read(cursor: Cursor, condition: str, parameters: Sequence[Any]) -> list[Edit]:
    edits = []
    for row in rows(cursor, _EDITS.format(condition=condition), list(parameters)):
        value = decode(row["value_text"]) or {}
        edits.append(
            Edit(
                edit_uid=value.get("edit_uid"),
                step_uid=row["step_uid"],
                message=value.get("message", {}),
                response_ids=np.asarray(value.get("response_ids", []), dtype=np.int32),
                text=value.get("text", ""),
                tokenizer_hash=value.get("tokenizer_hash"),
                template_hash=value.get("template_hash"),
                author=row["author"],
                source=row["source"],
                note=row["note"],
                created_at=seconds(row["created_at"]) or 0.0,
                action_uid=row["action_uid"],
                undone=bool(row["undone"]),
            )
        )
    return edits


def captured_uids(uids: Sequence[str], edits: Mapping[str, Edit]) -> list[str]:
    """The captured step of each uid: references to edits replaced by the step that was edited."""
    return [edits[uid].step_uid if uid in edits else uid for uid in uids]


def edited_sequences(captured: Sequences, uids: Sequence[str], edits: Mapping[str, Edit]) -> Sequences:
    """Sequences with the answers of edits in place of the captured ones; log-probs of edited tokens are NaN.

    Args:
        captured: the sequences of ``captured_uids(uids, edits)``.
        uids: steps and references to edits, [n].
        edits: as ``Edits.named(uids)`` gives them.
    """
    answers = {i: edits[uid].response_ids for i, uid in enumerate(uids) if uid in edits and not is_original(uid)}
    n = len(captured)
    kept = captured.lengths.copy()
    for i in answers:
        kept[i] = captured.n_prompt[i]
    added = np.array([len(answers[i]) if i in answers else 0 for i in range(n)], dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(kept + added)])
    ids = np.empty(int(offsets[-1]), dtype=np.int32)
    logprobs = None if captured.logprobs is None else np.full(len(ids), np.nan, dtype=np.float32)
    masked = None if captured.masked is None else np.zeros(len(ids), dtype=np.bool_)
    for i in range(n):
        source = slice(int(captured.offsets[i]), int(captured.offsets[i] + kept[i]))
        target = slice(int(offsets[i]), int(offsets[i] + kept[i]))
        ids[target] = captured.ids[source]
        if logprobs is not None and captured.logprobs is not None:
            logprobs[target] = captured.logprobs[source]
        if masked is not None and captured.masked is not None:
            masked[target] = captured.masked[source]
        if i in answers:
            ids[target.stop : int(offsets[i + 1])] = answers[i]
    parent, n_shared = captured.parent, captured.n_shared
    if parent is not None and n_shared is not None:
        edited = np.zeros(n + 1, dtype=np.bool_)
        edited[list(answers)] = True
        # The parent of a step is a captured step; what an edited answer shares with others is not known.
        alone = edited[:n] | edited[parent]
        parent, n_shared = np.where(alone, -1, parent), np.where(alone, 0, n_shared)
    return Sequences(
        ids=ids,
        offsets=offsets,
        n_prompt=captured.n_prompt,
        logprobs=logprobs,
        step_uids=list(uids),
        parent=parent,
        n_shared=n_shared,
        masked=masked,
    )


def edited_fields(fields: pa.Table, uids: Sequence[str], edits: Mapping[str, Edit]) -> pa.Table:
    """Columns of ``credit_fields`` of ``captured_uids``; what is about sampled tokens is null for edited answers."""
    edited = pa.array([uid in edits and not is_original(uid) for uid in uids])
    for place, name in enumerate(fields.column_names):
        if name in _SAMPLED:
            values = fields[name].combine_chunks().to_pylist()
            kept = [None if hidden else value for value, hidden in zip(values, edited.to_pylist(), strict=True)]
            fields = fields.set_column(place, name, pa.array(kept, fields.schema.field(name).type))
    return fields


def edited_step(step: Mapping[str, Any], reference: str, edit: Edit) -> dict[str, Any]:
    """A captured step as the step of a reference: the edited answer in place of the captured one.

    ``trajectory_uid`` and ``step_uid`` are the reference. An edited answer has no log-probs, reward or policy version.
    """
    named = {**step, "step_uid": reference, "trajectory_uid": reference, "parent_step_uid": None, "is_last": True}
    if is_original(reference):
        return named
    return {
        **named,
        "token_source": TokenSource.EDITED.value,
        "response_ids": edit.response_ids,
        "response_logprobs": None,
        "response_mask": None,
        "has_logprobs": False,
        "n_response_tokens": len(edit.response_ids),
        "response_message": dict(edit.message),
        "tool_names": [str((call.get("function") or {}).get("name")) for call in edit.message.get("tool_calls") or []],
        "preview": str(edit.message.get("content") or "")[:200],
        "finish_reason": "tool_calls" if edit.message.get("tool_calls") else "stop",
        "tokenizer_hash": edit.tokenizer_hash,
        "reward": None,
        "policy_version": None,
        "policy_version_end": None,
    }
