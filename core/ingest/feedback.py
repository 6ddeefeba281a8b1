"""Validates entries of ``feedback`` records. A bad entry becomes an ingest error; the batch goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.errors import InvalidInput
from core.ingest.drafts import mapping, maybe_int, maybe_number, maybe_text, text
from core.types import FeedbackKind


def feedback_entry(said: Mapping[str, Any], at: float) -> dict[str, Any]:
    """One entry as the pool takes it; ``at`` is when its record was written."""
    kind = text(said, "kind")
    if kind not in set(FeedbackKind):
        raise InvalidInput(f"feedback of unknown kind {kind!r}", field="kind", hint=", ".join(FeedbackKind))
    target = {name: maybe_text(said, name) for name in ("step_uid", "trajectory_uid", "response_id")}
    if sum(uid is not None for uid in target.values()) != 1:
        raise InvalidInput("feedback names one of step_uid, trajectory_uid and response_id", field="feedback")
    return {
        **target,
        "feedback_uid": text(said, "feedback_uid"),
        "choice_index": maybe_int(said, "choice_index") or 0,
        "kind": kind,
        "value": said.get("value"),
        "reward": maybe_number(said, "reward"),
        "author": text(said, "author"),
        "source": text(said, "source"),
        "note": maybe_text(said, "note"),
        "metadata": mapping(said, "metadata"),
        "given_at": maybe_number(said, "given_at"),
        "received_at": at,
    }
