"""JSON Schemas of responses. They list guaranteed fields; responses may have more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from core.types import FeedbackKind

Schema = Mapping[str, Any]

ANY: Final[Schema] = {}
STR: Final[Schema] = {"type": "string"}
TEXT_OR_NULL: Final[Schema] = {"type": ["string", "null"]}
INT: Final[Schema] = {"type": "integer"}
INT_OR_NULL: Final[Schema] = {"type": ["integer", "null"]}
NUM: Final[Schema] = {"type": "number"}
NUM_OR_NULL: Final[Schema] = {"type": ["number", "null"]}
BOOL: Final[Schema] = {"type": "boolean"}
OBJ: Final[Schema] = {"type": "object"}
VIEW: Final[Schema] = {"type": "object", "description": "filters, where"}
TIME: Final[Schema] = {"type": ["number", "null"], "description": "UTC seconds since the epoch"}


def array(items: Schema) -> Schema:
    """The schema of a list."""
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    """The schema, or null for unknown."""
    return {"anyOf": [schema, {"type": "null"}]}


def obj(**properties: Schema) -> Schema:
    """The schema of an object with at least these properties."""
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def bounded_integer(low: int, high: int) -> Schema:
    """The schema of a bounded integer in the query string."""
    return {"type": "integer", "minimum": low, "maximum": high}


LIMIT: Final = bounded_integer(1, 1000)
STEP_ROW: Final = obj(
    step_uid=STR, trajectory_uid=STR, prompt_uid=STR, step_index=INT, channel=STR, source=STR, agent=TEXT_OR_NULL,
    model=TEXT_OR_NULL, policy_version=INT_OR_NULL, token_source=STR, transition=TEXT_OR_NULL, call_kind=STR,
    identity_source=STR, reward=NUM_OR_NULL, trainable=BOOL, is_last=BOOL, finish_reason=TEXT_OR_NULL,
    n_prompt_tokens=INT_OR_NULL, n_response_tokens=INT_OR_NULL, created_at=STR, metadata=OBJ,
)  # fmt: skip
WHOLE_STEP: Final = {
    "allOf": [
        STEP_ROW,
        obj(
            prompt_ids=or_null(array(INT)), response_ids=or_null(array(INT)),
            response_logprobs=or_null(array(NUM_OR_NULL)), response_mask=or_null(array(INT)),
            messages=or_null(array(OBJ)), tools=or_null(array(OBJ)), response_message=or_null(OBJ),
            parent_step_uid=TEXT_OR_NULL, n_shared_tokens=INT,
        ),
    ]
}  # fmt: skip
NEXT: Final = obj(step_uid=STR, created_at=STR, messages=array(OBJ))
FEEDBACK: Final = obj(
    feedback_uid=STR, kind={"enum": [kind.value for kind in FeedbackKind]}, value=ANY, reward=NUM_OR_NULL, author=STR,
    source=STR, note=TEXT_OR_NULL, metadata=OBJ, given_at=TIME, received_at=TIME, target=OBJ, step_uid=TEXT_OR_NULL,
    trajectory_uid=TEXT_OR_NULL, state={"enum": ["applied", "pending", "withdrawn"]}, n_revisions=INT,
)  # fmt: skip
TOTALS: Final = obj(
    n_groups=INT, n_trajectories=INT, n_steps=INT, n_tokens=INT, n_packed_tokens=INT_OR_NULL, token_ratio=NUM_OR_NULL
)
POLICY: Final = obj(version=INT_OR_NULL, syncing=BOOL, sync=or_null(OBJ), history=array(OBJ), unreachable=array(STR))
SESSION: Final = obj(
    key_id=STR, trajectory_uid=STR, prompt_uid=TEXT_OR_NULL, channel=STR, agent=TEXT_OR_NULL, metadata=OBJ,
    limits=OBJ, created_at=TIME, revoked_at=TIME,
)  # fmt: skip
BATCH: Final = obj(batch_uid=STR, state=STR)
BINARY: Final[Schema] = {"type": "string", "format": "binary"}
