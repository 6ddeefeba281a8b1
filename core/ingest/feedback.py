"""Validates entries of ``feedback`` records. A bad entry becomes an ingest error; the other entries are processed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from core.checked import checked
from core.errors import InvalidInput
from core.ingest.fields import FeedbackEntry
from core.types import FeedbackKind


def feedback_entry(fields: Mapping[str, Any], at: float) -> dict[str, Any]:
    """One entry as the pool takes it; ``at`` is when its record was written."""
    entry = checked(FeedbackEntry, fields)
    if entry.kind not in set(FeedbackKind):
        raise InvalidInput(f"feedback of unknown kind {entry.kind!r}", field="kind", hint=", ".join(FeedbackKind))
    target = {name: getattr(entry, name) or None for name in ("step_uid", "trajectory_uid", "response_id")}
    if sum(uid is not None for uid in target.values()) != 1:
        raise InvalidInput("feedback names one of step_uid, trajectory_uid and response_id", field="feedback")
    return {**msgspec.structs.asdict(entry), **target, "note": entry.note or None, "received_at": at}
