"""Appends steps: the new tokens and messages of each, as columns, in a few bulk inserts."""

from __future__ import annotations

import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from core.errors import InvalidInput
from core.pool.state.findings import CallFindings, find_in_call, findings_table
from core.pool.state.runs import run_sql
from core.pool.store.content import (
    called_tools,
    canonical,
    content_hash,
    hashed,
    message_text,
    preview,
    printable,
)
from core.pool.store.database import Cursor, registered, timestamp
from core.pool.store.media import extract_media, insert_media
from core.types import IdentitySource, Step

RECENT_MESSAGES = 50_000
"""Message hashes kept in memory so that repeated system prompts and tools need no lookup."""

PLAIN_COLUMNS = (
    "step_uid", "step_index", "prompt_uid", "channel", "source", "agent", "model", "engine", "dialect",
    "identity_source", "call_kind", "transition", "status", "error", "token_source", "mismatch",
    "finish_reason", "n_shared_tokens", "n_shared_messages", "reward", "policy_version",
    "policy_version_end", "is_last", "latency_s", "response_id", "stream_mode", "tokenizer_hash",
    "journal_segment", "journal_offset",
)  # fmt: skip
"""Columns of ``steps`` that are attributes of ``Step`` without conversion."""

MADE_COLUMNS = (
    "step_id", "trajectory_id", "parent_step_id", "content_hash", "created_at", "ingested_at", "n_prompt_tokens",
    "n_response_tokens", "n_messages", "n_tools", "has_logprobs", "sampling", "metadata", "tool_names", "preview",
    "prompt_preview",
)  # fmt: skip
"""Columns of ``steps`` that are made here."""

FACTS_HASH = (
    "md5(row(content_hash::UUID, sampling, metadata, policy_version, policy_version_end, token_source, tokenizer_hash,"
    " transition, n_shared_tokens, agent, engine, dialect, error, mismatch, response_id)::VARCHAR)::UUID"
)
"""The hash of the facts that an export contains. Notes and tags are not among them."""

_STEP_TYPES: dict[str, pa.DataType] = {
    "step_id": pa.int64(),
    "trajectory_id": pa.int64(),
    "parent_step_id": pa.int64(),
    "content_hash": pa.string(),
    "step_index": pa.int32(),
    "created_at": pa.timestamp("us"),
    "ingested_at": pa.timestamp("us"),
    "n_prompt_tokens": pa.int32(),
    "n_response_tokens": pa.int32(),
    "n_shared_tokens": pa.int32(),
    "n_messages": pa.int32(),
    "n_shared_messages": pa.int32(),
    "n_tools": pa.int32(),
    "has_logprobs": pa.bool_(),
    "reward": pa.float64(),
    "policy_version": pa.int64(),
    "policy_version_end": pa.int64(),
    "is_last": pa.bool_(),
    "latency_s": pa.float64(),
    "journal_offset": pa.int64(),
    "tool_names": pa.list_(pa.string()),
}


def ids_array(ids: Sequence[int] | np.ndarray | None) -> np.ndarray | None:
    """Token ids -> int32 ``[n]``; None stays None. InvalidInput when one is not a 32-bit integer."""
    if ids is None:
        return None
    if isinstance(ids, np.ndarray) and ids.dtype == np.int32 and ids.ndim == 1:
        return ids
    try:
        wide = np.asarray(ids, dtype=np.int64) if len(ids) else np.zeros(0, np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput("Token ids must be integers.", field="prompt_ids") from error
    if wide.ndim != 1 or (wide.size and (wide.min() < -(2**31) or wide.max() >= 2**31)):
        raise InvalidInput("Token ids must be a flat list of 32-bit integers.", field="prompt_ids")
    return wide.astype(np.int32)


def logprobs_array(logprobs: Sequence[float | None] | np.ndarray | None) -> np.ndarray | None:
    """Log-probs -> float32 ``[n]`` with NaN where unknown; None stays None."""
    if logprobs is None:
        return None
    if isinstance(logprobs, np.ndarray):
        return logprobs.astype(np.float32, copy=False)
    return np.asarray([np.nan if x is None else x for x in logprobs] if len(logprobs) else [], np.float32)


def mask_array(mask: Sequence[int] | np.ndarray | None) -> np.ndarray | None:
    """0 and 1 -> uint8 ``[n]``; None where no token is masked."""
    if mask is None:
        return None
    array = np.asarray(mask, dtype=np.uint8)
    return None if array.all() else array


def uuid_text(digest: bytes) -> str:
    """16 bytes as DuckDB reads a UUID."""
    return digest.hex()


@dataclass(slots=True)
class Prepared:
    """A step with its arrays made and its parts hashed."""

    step: Step
    prompt: np.ndarray | None
    response: np.ndarray | None
    logprobs: np.ndarray | None
    mask: np.ndarray | None
    message_hashes: list[bytes] | None
    response_hash: bytes | None
    tools_hash: bytes | None
    content: bytes


def prepare(step: Step, bodies: dict[bytes, bytes]) -> Prepared:
    """Make arrays and hashes; message bodies are put into ``bodies`` by hash.

    The content hash covers what the producer said (tokens, messages, identity), not what linking
    concluded or when it arrived, so a replay of the same step is recognised.
    """

    def keep(value: Any) -> bytes:
        body, digest = hashed(value)
        bodies[digest] = body
        return digest

    prompt, response = ids_array(step.prompt_ids), ids_array(step.response_ids)
    logprobs, mask = logprobs_array(step.response_logprobs), mask_array(step.response_mask)
    if mask is not None and mask.size != (0 if response is None else response.size):
        raise InvalidInput("A mask needs one value per sampled token.", field="response_mask")
    messages = None if step.messages is None else [keep(message) for message in step.messages]
    answer = None if step.response_message is None else keep(step.response_message)
    tools = None if step.tools is None else keep(step.tools)
    content = b"".join(
        (
            canonical([step.trajectory_uid, step.model, step.finish_reason, step.reward, step.status, step.source]),
            *(_tagged(array) for array in (prompt, response, logprobs)),
            *(messages or ()),
            answer or b"-",
            tools or b"-",
            b"" if mask is None else mask.tobytes(),
        )
    )
    return Prepared(step, prompt, response, logprobs, mask, messages, answer, tools, content_hash(content))


def _tagged(array: np.ndarray | None) -> bytes:
    return b"-" if array is None else struct.pack("<q", array.size) + array.tobytes()


class MessageStore:
    """Content hash -> message_id, with a bounded memory of the recent ones in front of the table."""

    def __init__(self) -> None:
        # Each message of each step is looked up: cachetools.LRUCache takes two to five times as long as an OrderedDict.
        self._recent: OrderedDict[bytes, int] = OrderedDict()

    def forget(self) -> None:
        """Drop the memory, for instance after a rollback."""
        self._recent.clear()

    def ids(self, cursor: Cursor, bodies: Mapping[bytes, bytes], next_id: int) -> tuple[dict[bytes, int], int]:
        """Ids of all ``bodies``, inserting the unknown ones; returns them and the next free id."""
        known: dict[bytes, int] = {}
        missing: list[bytes] = []
        for digest in bodies:
            known_id = self._recent.get(digest)
            if known_id is None:
                missing.append(digest)
            else:
                self._recent.move_to_end(digest)
                known[digest] = known_id
        if missing:
            table = pa.table({"content_hash": pa.array([uuid_text(digest) for digest in missing], pa.string())})
            with registered(cursor, wanted_hashes=table):
                stored = cursor.execute(
                    "SELECT replace(content_hash::VARCHAR, '-', ''), message_id FROM messages"
                    " WHERE content_hash IN (SELECT content_hash::UUID FROM wanted_hashes)"
                ).fetchall()
            for text, message_id in stored:
                known[bytes.fromhex(text)] = message_id
            fresh = [digest for digest in missing if digest not in known]
            for digest in fresh:
                known[digest] = next_id
                next_id += 1
            self._insert(cursor, [(known[digest], digest, bodies[digest]) for digest in fresh])
            for digest in missing:
                self._recent[digest] = known[digest]
            while len(self._recent) > RECENT_MESSAGES:
                self._recent.popitem(last=False)
        return known, next_id

    @staticmethod
    def _insert(cursor: Cursor, new: Sequence[tuple[int, bytes, bytes]]) -> None:
        if not new:
            return
        media: dict[bytes, bytes] = {}
        bodies = [extract_media(body, media) for _, _, body in new]
        insert_media(cursor, media)
        table = pa.table(
            {
                "message_id": pa.array([row[0] for row in new], pa.int64()),
                "content_hash": pa.array([uuid_text(row[1]) for row in new], pa.string()),
                "body": pa.array(bodies, pa.binary()).cast(pa.string()),
            }
        )
        with registered(cursor, new_messages=table):
            cursor.execute("INSERT INTO messages SELECT message_id, content_hash::UUID, body FROM new_messages")


def list_array(parts: Sequence[np.ndarray | None], kind: pa.DataType) -> pa.ListArray:
    """Arrays -> one Arrow list column; None is a NULL list, NaN a NULL element of a float list."""
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([0 if part is None else part.size for part in parts], out=offsets[1:])
    present = [part for part in parts if part is not None]
    flat = np.concatenate(present) if present else np.zeros(0, np.int32)
    values = pa.array(flat, kind, from_pandas=pa.types.is_floating(kind))
    mask = pa.array([part is None for part in parts], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=mask)


def _json(value: Mapping[str, Any]) -> str | None:
    return canonical(value).decode("utf-8") if value else None


def insert_steps(
    cursor: Cursor,
    prepared: Sequence[Prepared],
    *,
    step_ids: Mapping[str, int],
    parent_ids: Mapping[str, int],
    trajectory_ids: Mapping[str, int],
    message_ids: Mapping[bytes, int],
    now: float,
) -> None:
    """Insert into ``steps``, ``step_tokens``, ``step_messages`` and ``step_findings``.

    A parent that the pool does not hold is dropped together with its sharing: the step is stored whole.
    """
    facts: dict[str, list[Any]] = {name: [] for name in (*PLAIN_COLUMNS, *MADE_COLUMNS)}
    suffixes: list[np.ndarray | None] = []
    new_messages: list[np.ndarray | None] = []
    answers: list[int | None] = []
    tools: list[int | None] = []
    seen: list[CallFindings] = []
    ingested_at = timestamp(now)
    for item in prepared:
        step = item.step
        parent_id = parent_ids.get(step.step_uid)
        n_shared = step.n_shared_tokens if parent_id is not None and item.prompt is not None else 0
        n_shared_messages = step.n_shared_messages if parent_id is not None and step.messages is not None else 0
        for name in PLAIN_COLUMNS:
            facts[name].append(getattr(step, name))
        facts["n_shared_tokens"][-1] = n_shared
        facts["n_shared_messages"][-1] = n_shared_messages
        facts["step_id"].append(step_ids[step.step_uid])
        facts["trajectory_id"].append(trajectory_ids[step.trajectory_uid])
        facts["parent_step_id"].append(parent_id)
        facts["content_hash"].append(uuid_text(item.content))
        facts["created_at"].append(timestamp(step.created_at))
        facts["ingested_at"].append(ingested_at)
        facts["n_prompt_tokens"].append(None if item.prompt is None else item.prompt.size)
        facts["n_response_tokens"].append(None if item.response is None else item.response.size)
        facts["n_messages"].append(None if step.messages is None else len(step.messages))
        facts["n_tools"].append(None if step.tools is None else len(step.tools))
        facts["has_logprobs"].append(item.logprobs is not None)
        facts["sampling"].append(_json(step.sampling))
        facts["metadata"].append(_json(step.metadata))
        facts["tool_names"].append(called_tools(step.response_message))
        facts["preview"].append(preview(step.response_message))
        facts["prompt_preview"].append(prompt_preview(step) if parent_id is None else None)
        suffixes.append(None if item.prompt is None else item.prompt[n_shared:])
        hashes = item.message_hashes
        new_messages.append(
            None if hashes is None else np.array([message_ids[h] for h in hashes[n_shared_messages:]], np.int64)
        )
        answers.append(None if item.response_hash is None else message_ids[item.response_hash])
        tools.append(None if item.tools_hash is None else message_ids[item.tools_hash])
        seen.append(
            find_in_call(
                step.response_message,
                (step.messages or ())[n_shared_messages:],
                step.tools,
                status=step.status,
                finish_reason=step.finish_reason,
                response=None if item.response is None else item.response.tobytes(),
                uncertain="uncertain" in step.metadata and step.identity_source == IdentitySource.INFERRED,
            )
        )
    ids = pa.array(facts["step_id"], pa.int64())
    owners = pa.array(facts["trajectory_id"], pa.int64())
    fact_table = pa.table(
        {name: pa.array(values, _STEP_TYPES.get(name, pa.string())) for name, values in facts.items()}
    )
    token_table = pa.table(
        {
            "step_id": ids,
            "trajectory_id": owners,
            "prompt_suffix": list_array(suffixes, pa.int32()),
            "response_ids": list_array([item.response for item in prepared], pa.int32()),
            "response_logprobs": list_array([item.logprobs for item in prepared], pa.float32()),
            "response_mask": list_array([item.mask for item in prepared], pa.uint8()),
        }
    )
    message_table = pa.table(
        {
            "step_id": ids,
            "trajectory_id": owners,
            "new_message_ids": list_array(new_messages, pa.int64()),
            "response_message_id": pa.array(answers, pa.int64()),
            "tools_id": pa.array(tools, pa.int64()),
        }
    )
    with registered(
        cursor,
        new_steps=fact_table,
        new_tokens=token_table,
        new_step_messages=message_table,
        new_findings=findings_table(ids, owners, seen),
    ):
        cursor.execute(
            f"INSERT INTO steps BY NAME SELECT *, {FACTS_HASH} AS facts_hash, {run_sql('metadata')} AS run"
            " FROM new_steps"
        )
        cursor.execute("INSERT INTO step_tokens BY NAME SELECT * FROM new_tokens")
        cursor.execute("INSERT INTO step_messages BY NAME SELECT * FROM new_step_messages")
        cursor.execute("INSERT INTO step_findings BY NAME SELECT * FROM new_findings")


def stored_uids(cursor: Cursor, uids: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Which of these step uids the pool holds: uid -> (step_id, content hash as hex)."""
    wanted = list(dict.fromkeys(uids))
    if not wanted:
        return {}
    with registered(cursor, wanted_uids=pa.table({"step_uid": pa.array(wanted, pa.string())})):
        stored = cursor.execute(
            "SELECT step_uid, step_id, replace(content_hash::VARCHAR, '-', '') FROM steps"
            " WHERE step_uid IN (SELECT step_uid FROM wanted_uids)"
        ).fetchall()
    return {uid: (step_id, digest) for uid, step_id, digest in stored}


def trajectory_ids(cursor: Cursor, uids: Iterable[str], next_id: Callable[[], int] | None) -> dict[str, int]:
    """Ids of trajectories by uid; unknown ones are added when ``next_id`` is given, else left out."""
    wanted = list(dict.fromkeys(uids))
    if not wanted:
        return {}
    with registered(cursor, wanted_uids=pa.table({"uid": pa.array(wanted, pa.string())})):
        ids: dict[str, int] = dict(
            cursor.execute(
                "SELECT trajectory_uid, trajectory_id FROM trajectories"
                " WHERE trajectory_uid IN (SELECT uid FROM wanted_uids)"
            ).fetchall()
        )
    if next_id is not None:
        new = [(next_id(), uid) for uid in wanted if uid not in ids]
        if new:
            table = pa.table({"id": pa.array([n for n, _ in new], pa.int64()), "uid": [uid for _, uid in new]})
            with registered(cursor, new_trajectories=table):
                cursor.execute("INSERT INTO trajectories SELECT id, uid FROM new_trajectories")
            ids |= {uid: number for number, uid in new}
    return ids


_REMINDERS = re.compile(r"<(system-reminder|environment_context)>.*?</\1>", re.DOTALL)


def prompt_preview(step: Step) -> str | None:
    """First characters of the task prompt; None when no message contains it.

    A step without a parent holds no answer that was sampled here: the user's turns before the last one are examples,
    primers and contexts, the same ones in every task.
    """
    only_reminders = None
    for message in reversed(step.messages or ()):
        text = message_text(message).strip() if message.get("role") == "user" else ""
        # A harness adds its own reminders to the message of the task, or sends them in a separate message.
        if without_reminders := _REMINDERS.sub("", text).strip():
            return printable(without_reminders)
        only_reminders = text or only_reminders
    return None if only_reminders is None else printable(only_reminders)
