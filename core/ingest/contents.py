"""The contents of journal records, checked and typed."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import asdict

from core.checked import checked
from core.errors import StudioError
from core.ingest.drafts import draft_of_wire, drafts_of_call
from core.ingest.feedback import feedback_entry
from core.ingest.fields import (
    FeedbackFields,
    PolicyFields,
    RevokeFields,
    SessionFields,
    StepsFields,
    TrajectoryFields,
)
from core.ingest.reader import RecordReader
from core.journal import Record
from core.types import PolicyEvent

STEP_KINDS: Final = frozenset({"steps", "call"})
"""Kinds of records that hold steps."""
UNREADABLE: Final = (StudioError, KeyError, TypeError, ValueError, OverflowError, RecursionError)
"""Exceptions of malformed records. Any other exception is a bug or a broken disk, and stops the batch."""


def read_record(record: Record, reader: RecordReader) -> tuple[str, Any]:
    """(kind, content): steps for ``steps`` and ``call``, a checked mapping or event for the others."""
    content = reader.parse(record.payload)
    kind = content["kind"]
    if kind == "call":
        return "call", drafts_of_call(content, record.segment, record.offset)
    if kind == "steps":
        steps = checked(StepsFields, content)
        return "steps", [draft_of_wire(step, steps.at, record.segment, record.offset) for step in steps.steps]
    if kind == "policy":
        event = checked(PolicyFields, content)
        return "policy", PolicyEvent(event.version, event.event, event.at, event.metadata)
    if kind == "feedback":
        feedback = checked(FeedbackFields, content)
        return "feedback", [feedback_entry(item, feedback.at) for item in feedback.feedback]
    if kind == "revoke":
        return "revoke", asdict(checked(RevokeFields, content))
    fields = asdict(checked(SessionFields if kind == "session" else TrajectoryFields, content))
    for name in ("prompt_uid", "channel", "agent", "outcome"):
        fields[name] = fields[name] or None
    if kind == "session":
        fields["channel"] = fields["channel"] or "train"
    return kind, fields


def reason_of(error: BaseException) -> str:
    """The text of an exception, for the pool's list of errors."""
    if isinstance(error, StudioError):
        return f"{error.field}: {error.message}" if error.field else error.message
    return repr(error)
