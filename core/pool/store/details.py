"""All details of one step or trajectory, in the shape of the HTTP contract."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from core.errors import NotFound
from core.pool.state.findings import names_of
from core.pool.store.content import decode
from core.pool.store.database import Cursor, in_list, rows
from core.pool.store.restore import (
    links_of,
    new_messages,
    restored_tokens,
    token_parts,
    whole_messages,
    with_ancestors,
)

_STATE = """
SELECT
    step_uid, prompt_uid, step_index, channel, source, agent, run, model, engine, policy_version, policy_version_end,
    token_source, transition, call_kind, identity_source, status, error, mismatch, finish_reason, n_prompt_tokens,
    n_response_tokens, n_shared_tokens, created_at, latency_s, reward, quality, trainable, tags, n_notes, is_last,
    tool_names, preview, has_logprobs, correct, finding_bits, step_id, parent_step_id, trajectory_id
FROM step_state WHERE {condition} ORDER BY step_index, step_id
"""
_FACTS = """
SELECT
    step_id, reward AS original_reward, dialect, n_messages, n_shared_messages, n_tools, response_id, stream_mode,
    tokenizer_hash, journal_segment, journal_offset, ingested_at, sampling, metadata
FROM steps WHERE {condition}
"""
_OWNER = """
SELECT trajectory_uid, reward AS trajectory_reward, quality AS trajectory_quality, complete,
    correct AS trajectory_correct, finding_bits, trajectory_id
FROM trajectory_state WHERE {condition}
"""
# One table at a time: to plan a join of the three takes longer than to read them and put the rows together here.

_TRAJECTORIES = """
SELECT * EXCLUDE (trajectory_id, finding_bits, step_finding_bits, tags_json),
    finding_bits | step_finding_bits AS findings, trajectory_id
FROM trajectory_state t WHERE trajectory_uid IN (SELECT unnest(?::VARCHAR[])) ORDER BY trajectory_id
"""


def iso(value: datetime | None) -> str | None:
    """Naive UTC datetime -> ISO 8601 with its zone."""
    return None if value is None else value.replace(tzinfo=UTC).isoformat()


def _step_rows(
    cursor: Cursor, trajectory_ids: Collection[int], step_ids: Collection[int] | None = None
) -> list[dict[str, Any]]:
    """Steps of trajectories, in the order of each; without ``step_ids`` all.

    ``parent_step_uid`` is set if the parent is among them.
    """
    with ExitStack() as stack:
        condition, bound = stack.enter_context(in_list(cursor, "trajectory_id", trajectory_ids))
        owners = {row.pop("trajectory_id"): row for row in rows(cursor, _OWNER.format(condition=condition), bound)}
        if step_ids is not None:
            of_steps, more = stack.enter_context(in_list(cursor, "step_id", step_ids))
            condition, bound = f"{condition} AND {of_steps}", [*bound, *more]
        steps = rows(cursor, _STATE.format(condition=condition), bound)
        facts = rows(cursor, _FACTS.format(condition=condition), bound)
    of_owner = {trajectory_id: owner.pop("finding_bits") for trajectory_id, owner in owners.items()}
    of_step = {fact.pop("step_id"): fact for fact in facts}
    uids = {row["step_id"]: row["step_uid"] for row in steps}
    for row in steps:
        row.update(owners[row["trajectory_id"]] | of_step[row["step_id"]])
        row["parent_step_uid"] = uids.get(row.pop("parent_step_id"))
        row["sampling"] = decode(row["sampling"]) or {}
        row["metadata"] = decode(row["metadata"]) or {}
        row["findings"] = names_of(row.pop("finding_bits") | of_owner[row["trajectory_id"]])
        row["created_at"] = iso(row["created_at"])
        row["ingested_at"] = iso(row["ingested_at"])
    return steps


def _fill(
    cursor: Cursor, trajectory_ids: Collection[int], chosen: list[dict[str, Any]], *, with_tokens: bool = True
) -> None:
    links = links_of(cursor, trajectory_ids)
    wanted = [row["step_id"] for row in chosen]
    ordered = with_ancestors(links, wanted)
    tokens = restored_tokens(links, ordered, token_parts(cursor, ordered)) if with_tokens else {}
    messages = whole_messages(cursor, links, ordered, wanted)
    for row in chosen:
        step_id = row["step_id"]
        if with_tokens:
            row["prompt_ids"], row["response_ids"], row["response_logprobs"], row["response_mask"] = tokens[step_id]
        row["messages"], row["response_message"], row["tools"] = messages[step_id]


_PLACE = "SELECT trajectory_id, step_id, parent_step_id FROM step_state WHERE step_uid = ?"


_OWN_ID = "SELECT trajectory_id FROM trajectory_state WHERE trajectory_uid = ?"


def read_step(cursor: Cursor, step_uid: str, *, tokens: bool = True) -> dict[str, Any]:
    """One step, whole. ``prompt_ids`` and ``response_ids`` are int32 arrays, ``response_logprobs`` float32 with NaN
    where unknown; None: unknown; ``response_mask`` uint8, None: no token is masked. Without ``tokens`` these four are
    left out. NotFound when there is no such step."""
    chosen = _one_step(cursor, step_uid)
    _fill(cursor, [chosen["trajectory_id"]], [chosen], with_tokens=tokens)
    return _public(chosen)


def read_turn(cursor: Cursor, step_uid: str) -> dict[str, Any]:
    """One step of ``read_turns``. NotFound when there is no such step."""
    chosen = _one_step(cursor, step_uid)
    chosen["messages"], chosen["response_message"] = new_messages(cursor, [chosen["step_id"]])[chosen["step_id"]]
    return _public(chosen)


def _one_step(cursor: Cursor, step_uid: str) -> dict[str, Any]:
    places = cursor.execute(_PLACE, [step_uid]).fetchall()
    if not places:
        raise NotFound(f"No step {step_uid!r}.", field="step_uid")
    trajectory_id, step_id, parent_id = places[0]
    with_parent = {step_id} if parent_id is None else {step_id, parent_id}
    return next(row for row in _step_rows(cursor, [trajectory_id], with_parent) if row["step_id"] == step_id)


_CHILD = """
SELECT step_id, step_uid, created_at FROM step_state
WHERE trajectory_id = ? AND parent_step_id = ? AND transition IN ('extends', 'realigned', 'tail_replaced')
ORDER BY step_index, step_id
"""


def read_next_state(cursor: Cursor, step_uid: str) -> dict[str, Any] | None:
    """The messages that follow a step's answer in the prompt of the step that continues it.

    These are the user's next message, or the results of the tools that the answer called. None if no step continues
    it, or its messages are unknown.
    """
    places = cursor.execute(_PLACE, [step_uid]).fetchall()
    children = cursor.execute(_CHILD, list(places[0][:2])).fetchall() if places else []
    if not children:
        return None
    child_id, child_uid, created_at = children[0]
    links = links_of(cursor, [places[0][0]])
    messages = whole_messages(cursor, links, with_ancestors(links, [child_id]), [child_id])[child_id].messages or []
    answers = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    if not answers:
        return None
    return {
        "step_uid": child_uid,
        "created_at": iso(created_at),
        "messages": messages[answers[-1] + 1 :],
    }


def read_turns(cursor: Cursor, trajectory_uid: str) -> list[dict[str, Any]]:
    """The steps of a trajectory in order, each with only the messages that its prompt adds.

    ``messages`` are those after the first ``n_shared_messages`` of the parent's prompt and answer, None: unknown;
    ``response_message`` is the answer. So each message is read once, however long the trajectory. NotFound when there
    is no such trajectory.
    """
    places = cursor.execute(_OWN_ID, [trajectory_uid]).fetchall()
    if not places:
        raise NotFound(f"No trajectory {trajectory_uid!r}.", field="trajectory_uid")
    steps = _step_rows(cursor, [places[0][0]])
    if not steps:
        return []
    added = new_messages(cursor, [row["step_id"] for row in steps])
    for row in steps:
        row["messages"], row["response_message"] = added[row["step_id"]]
    return [_public(row) for row in steps]


def read_trajectory(cursor: Cursor, trajectory_uid: str, *, tokens: bool) -> dict[str, Any]:
    """One trajectory and its steps in order. NotFound when there is no such trajectory."""
    trajectories = read_trajectories(cursor, [trajectory_uid], tokens=tokens)
    if not trajectories:
        raise NotFound(f"No trajectory {trajectory_uid!r}.", field="trajectory_uid")
    return trajectories[trajectory_uid]


def read_trajectories(cursor: Cursor, trajectory_uids: Sequence[str], *, tokens: bool) -> dict[str, dict[str, Any]]:
    """The same of several by uid, with as many queries as for one; uids that do not exist are left out."""
    trajectories = {row.pop("trajectory_id"): row for row in rows(cursor, _TRAJECTORIES, [list(trajectory_uids)])}
    if not trajectories:
        return {}
    steps = _step_rows(cursor, trajectories.keys())
    if tokens:
        _fill(cursor, trajectories.keys(), steps)
    for trajectory in trajectories.values():
        trajectory["started_at"] = iso(trajectory["started_at"])
        trajectory["ended_at"] = iso(trajectory["ended_at"])
        trajectory["findings"] = names_of(trajectory["findings"])
        trajectory["metadata"] = decode(trajectory["metadata"]) or {}
        trajectory["steps"] = []
    for step in steps:
        trajectories[step["trajectory_id"]]["steps"].append(_public(step))
    return {trajectory["trajectory_uid"]: trajectory for trajectory in trajectories.values()}


def _public(step: dict[str, Any]) -> dict[str, Any]:
    del step["step_id"], step["trajectory_id"]
    return step
