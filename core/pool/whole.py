"""One step or trajectory with everything known about it, in the shape of the HTTP contract."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from core.errors import NotFound
from core.pool.content import decode
from core.pool.database import Cursor, rows
from core.pool.findings import names_of
from core.pool.restore import links_of, token_parts, whole_messages, whole_tokens, with_ancestors

_STEPS = """
SELECT
    s.step_uid, t.trajectory_uid, s.prompt_uid, s.step_index, s.channel, s.source, s.agent, s.model, s.engine,
    s.policy_version, s.policy_version_end, s.token_source, s.transition, s.call_kind, s.identity_source,
    s.status, s.error, s.mismatch, s.finish_reason, s.n_prompt_tokens, s.n_response_tokens, s.n_shared_tokens,
    s.created_at, s.latency_s, s.reward, f.reward AS original_reward, s.quality, s.trainable, s.tags, s.n_notes,
    s.is_last, s.tool_names, s.preview, t.reward AS trajectory_reward, t.quality AS trajectory_quality, t.complete,
    f.dialect, f.n_messages, f.n_shared_messages, f.n_tools, s.has_logprobs, s.correct, t.correct AS trajectory_correct,
    s.finding_bits | t.finding_bits AS findings, f.response_id, f.stream_mode,
    f.tokenizer_hash, f.journal_segment, f.journal_offset, f.ingested_at, f.sampling, f.metadata,
    s.step_id, s.parent_step_id, s.trajectory_id
FROM step_state s
JOIN trajectory_state t USING (trajectory_id)
JOIN (FROM steps WHERE trajectory_id = ?) f USING (step_id)
WHERE s.trajectory_id = ?
ORDER BY s.step_index, s.step_id
"""

_TRAJECTORY = """
SELECT * EXCLUDE (trajectory_id, finding_bits, step_finding_bits), finding_bits | step_finding_bits AS findings,
    trajectory_id
FROM trajectory_state t WHERE trajectory_uid = ?
"""


def iso(value: datetime | None) -> str | None:
    """Naive UTC datetime -> ISO 8601 with its zone."""
    return None if value is None else value.replace(tzinfo=UTC).isoformat()


def _step_rows(cursor: Cursor, trajectory_id: int) -> list[dict[str, Any]]:
    found = rows(cursor, _STEPS, [trajectory_id, trajectory_id])
    uids = {row["step_id"]: row["step_uid"] for row in found}
    for row in found:
        row["parent_step_uid"] = uids.get(row.pop("parent_step_id"))
        row["sampling"] = decode(row["sampling"]) or {}
        row["metadata"] = decode(row["metadata"]) or {}
        row["findings"] = names_of(row["findings"])
        row["created_at"] = iso(row["created_at"])
        row["ingested_at"] = iso(row["ingested_at"])
    return found


def _fill(cursor: Cursor, trajectory_id: int, chosen: list[dict[str, Any]]) -> None:
    links = links_of(cursor, [trajectory_id])
    wanted = [row["step_id"] for row in chosen]
    ordered = with_ancestors(links, wanted)
    tokens = whole_tokens(links, ordered, token_parts(cursor, ordered))
    messages = whole_messages(cursor, links, ordered, wanted)
    for row in chosen:
        step_id = row["step_id"]
        row["prompt_ids"], row["response_ids"], row["response_logprobs"] = tokens[step_id]
        row["messages"], row["response_message"], row["tools"] = messages[step_id]


def read_step(cursor: Cursor, step_uid: str) -> dict[str, Any]:
    """One step, whole. ``prompt_ids`` and ``response_ids`` are int32 arrays, ``response_logprobs`` float32 with NaN
    where unknown; None: unknown. NotFound when there is no such step."""
    found = cursor.execute("SELECT trajectory_id FROM step_state WHERE step_uid = ?", [step_uid]).fetchone()
    if found is None:
        raise NotFound(f"No step {step_uid!r}.", field="step_uid")
    chosen = [row for row in _step_rows(cursor, found[0]) if row["step_uid"] == step_uid]
    _fill(cursor, found[0], chosen)
    return _public(chosen[0])


_CHILD = """
SELECT c.step_uid FROM step_state c
JOIN step_state s ON s.step_id = c.parent_step_id AND s.trajectory_id = c.trajectory_id
WHERE s.step_uid = ? AND c.transition IN ('extends', 'realigned', 'tail_replaced')
ORDER BY c.step_index, c.step_id
"""


def read_next_state(cursor: Cursor, step_uid: str) -> dict[str, Any] | None:
    """What came back on a step's answer: the messages behind it in the prompt of the step that goes on from it.

    A user's next words, or the results of the tools that it called: what a live service says of an answer without
    being asked. None where nothing went on from it, or its messages are unknown.
    """
    children = cursor.execute(_CHILD, [step_uid]).fetchall()
    if not children:
        return None
    child = read_step(cursor, children[0][0])
    said = child["messages"] or []
    answers = [place for place, message in enumerate(said) if message.get("role") == "assistant"]
    if not answers:
        return None
    return {
        "step_uid": child["step_uid"],
        "created_at": child["created_at"],
        "messages": said[answers[-1] + 1 :],
    }


def read_trajectory(cursor: Cursor, trajectory_uid: str, *, tokens: bool) -> dict[str, Any]:
    """One trajectory and its steps in order. NotFound when there is no such trajectory."""
    found = rows(cursor, _TRAJECTORY, [trajectory_uid])
    if not found:
        raise NotFound(f"No trajectory {trajectory_uid!r}.", field="trajectory_uid")
    trajectory = found[0]
    trajectory_id = trajectory.pop("trajectory_id")
    steps = _step_rows(cursor, trajectory_id)
    if tokens:
        _fill(cursor, trajectory_id, steps)
    trajectory["started_at"] = iso(trajectory["started_at"])
    trajectory["ended_at"] = iso(trajectory["ended_at"])
    trajectory["findings"] = names_of(trajectory["findings"])
    trajectory["metadata"] = decode(trajectory["metadata"]) or {}
    trajectory["steps"] = [_public(step) for step in steps]
    return trajectory


def _public(step: dict[str, Any]) -> dict[str, Any]:
    del step["step_id"], step["trajectory_id"]
    return step
