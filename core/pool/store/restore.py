"""Restores steps from deltas: prompts and message lists, exactly as they came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from core.errors import NotFound, PoolError
from core.pool.store.content import decode
from core.pool.store.database import Cursor, arrow, in_list, registered
from core.pool.store.media import restore_media
from core.tree.sequences import Sequences


class Link(NamedTuple):
    """Where a step hangs in its trajectory's prefix forest."""

    step_id: int
    parent_step_id: int | None
    n_shared_tokens: int
    n_shared_messages: int


class StepTokens(NamedTuple):
    """prompt and response int32 ``[P]``, ``[R]``; logprobs float32 ``[R]``, NaN where unknown; None: unknown.

    mask uint8 ``[R]``, 0: no loss may count the token; None: all may.
    """

    prompt: np.ndarray | None
    response: np.ndarray | None
    logprobs: np.ndarray | None
    mask: np.ndarray | None


def links_of(cursor: Cursor, trajectory_ids: Iterable[int]) -> dict[int, Link]:
    """Every step of these trajectories by id, in order of arrival."""
    with in_list(cursor, "trajectory_id", set(trajectory_ids)) as (condition, bound):
        links = cursor.execute(
            "SELECT step_id, parent_step_id, n_shared_tokens, n_shared_messages FROM steps"
            f" WHERE {condition} ORDER BY step_id",
            bound,
        ).fetchall()
    return {row[0]: Link(*row) for row in links}


def with_ancestors(links: Mapping[int, Link], step_ids: Iterable[int]) -> list[int]:
    """These steps and all their ancestors, ascending: parents come before children."""
    wanted: set[int] = set()
    for start in step_ids:
        step_id: int | None = start
        while step_id is not None and step_id not in wanted:
            wanted.add(step_id)
            step_id = links[step_id].parent_step_id
    return sorted(wanted)


def _list_parts(column: pa.ChunkedArray, empty: Any) -> list[np.ndarray | None]:
    """An Arrow list column as one numpy view per row; None for NULL, NaN for NULL floats."""
    parts: list[np.ndarray | None] = []
    for chunk in column.chunks:
        if len(chunk) == 0:
            continue
        offsets = chunk.offsets.to_numpy()
        values = chunk.values
        flat = values.to_numpy(zero_copy_only=False).astype(empty, copy=False)
        valid = chunk.is_valid().to_numpy(zero_copy_only=False)
        parts.extend(flat[offsets[row] : offsets[row + 1]] if valid[row] else None for row in range(len(chunk)))
    return parts


def token_parts(cursor: Cursor, step_ids: Sequence[int]) -> dict[int, StepTokens]:
    """The stored tokens of each step: (prompt suffix, response, logprobs), by one query."""
    if not step_ids:
        return {}
    with in_list(cursor, "step_id", step_ids) as (condition, bound):
        table = arrow(
            cursor,
            "SELECT step_id, prompt_suffix, response_ids, response_logprobs, response_mask FROM step_tokens"
            f" WHERE {condition}",
            bound,
        )
    ids = table.column("step_id").to_pylist()
    columns = (
        _list_parts(table.column("prompt_suffix"), np.int32),
        _list_parts(table.column("response_ids"), np.int32),
        _list_parts(table.column("response_logprobs"), np.float32),
        _list_parts(table.column("response_mask"), np.uint8),
    )
    return {step_id: StepTokens(*parts) for step_id, *parts in zip(ids, *columns, strict=True)}


def restored_tokens(
    links: Mapping[int, Link], ordered: Sequence[int], parts: Mapping[int, StepTokens]
) -> dict[int, StepTokens]:
    """Full prompts of ``ordered`` (ancestors included, parents first)."""
    tokens: dict[int, StepTokens] = {}
    for step_id in ordered:
        link, part = links[step_id], parts[step_id]
        prompt, n_shared = part.prompt, link.n_shared_tokens
        if prompt is not None and n_shared:
            parent = (
                tokens[link.parent_step_id] if link.parent_step_id is not None else StepTokens(None, None, None, None)
            )
            own_prompt, prompt = prompt, np.empty(n_shared + prompt.size, np.int32)
            at = 0
            for piece in (parent.prompt, parent.response):
                if piece is not None:
                    stop = min(n_shared, at + piece.size)
                    prompt[at:stop] = piece[: stop - at]
                    at = stop
            if at != n_shared:
                raise PoolError(f"Step {step_id} shares {n_shared} tokens with its parent, which has {at}.")
            prompt[n_shared:] = own_prompt
        tokens[step_id] = StepTokens(prompt, part.response, part.logprobs, part.mask)
    return tokens


class StepMessages(NamedTuple):
    """Decoded JSON; None: unknown."""

    messages: list[Any] | None
    response_message: Any
    tools: list[Any] | None


def whole_messages(
    cursor: Cursor, links: Mapping[int, Link], ordered: Sequence[int], wanted: Iterable[int]
) -> dict[int, StepMessages]:
    """Messages, answer and tools of the ``wanted`` steps; ``ordered`` holds them and their ancestors."""
    if not ordered:
        return {}
    with in_list(cursor, "step_id", ordered) as (condition, bound):
        message_rows = cursor.execute(
            f"SELECT step_id, new_message_ids, response_message_id, tools_id FROM step_messages WHERE {condition}",
            bound,
        ).fetchall()
    stored = {row[0]: row[1:] for row in message_rows}
    lists: dict[int, list[int] | None] = {}
    for step_id in ordered:
        new, answer, _ = stored[step_id]
        link = links[step_id]
        if new is not None and link.n_shared_messages and link.parent_step_id is not None:
            parent_answer = stored[link.parent_step_id][1]
            line = [*(lists[link.parent_step_id] or ()), *([] if parent_answer is None else [parent_answer])]
            new = [*line[: link.n_shared_messages], *new]
        lists[step_id] = new
    wanted = list(wanted)
    needed: set[int] = set()
    for step_id in wanted:
        needed.update(lists[step_id] or ())
        needed.update(number for number in stored[step_id][1:] if number is not None)
    bodies = _bodies(cursor, needed)

    def body(number: int | None) -> Any:
        return None if number is None else bodies[number]

    result = {}
    for step_id in wanted:
        numbers = lists[step_id]
        _, answer, tools = stored[step_id]
        result[step_id] = StepMessages(
            None if numbers is None else [bodies[number] for number in numbers], body(answer), body(tools)
        )
    return result


def new_messages(cursor: Cursor, step_ids: Sequence[int]) -> dict[int, tuple[list[Any] | None, Any]]:
    """For each step the messages that its prompt adds to its parent's, and its answer; None: unknown."""
    with in_list(cursor, "step_id", step_ids) as (condition, bound):
        stored = cursor.execute(
            f"SELECT step_id, new_message_ids, response_message_id FROM step_messages WHERE {condition}", bound
        ).fetchall()
    needed = {number for _, new, answer in stored for number in (*(new or ()), answer) if number is not None}
    bodies = _bodies(cursor, needed)
    return {
        step_id: (None if new is None else [bodies[number] for number in new], bodies.get(answer))
        for step_id, new, answer in stored
    }


def _bodies(cursor: Cursor, message_ids: set[int]) -> dict[int, Any]:
    if not message_ids:
        return {}
    with in_list(cursor, "message_id", message_ids) as (condition, bound):
        stored = cursor.execute(
            f"SELECT message_id, replace(content_hash::VARCHAR, '-', ''), body FROM messages WHERE {condition}",
            bound,
        ).fetchall()
    return {number: decode(text) for number, text in restore_media(cursor, stored).items()}


def sequences(cursor: Cursor, step_uids: Sequence[str]) -> Sequences:
    """Full prompt + response of each step, in the order given. NotFound names an unknown uid.

    Steps without ids give an empty sequence. ``logprobs`` is NaN on prompts and where unknown, None when no
    step has any.
    """
    with registered(cursor, wanted_uids=pa.table({"uid": pa.array(list(step_uids), pa.string())})):
        places = cursor.execute(
            "SELECT step_uid, step_id, trajectory_id FROM step_state WHERE step_uid IN (SELECT uid FROM wanted_uids)"
        ).fetchall()
    where = {uid: (step_id, owner) for uid, step_id, owner in places}
    for uid in step_uids:
        if uid not in where:
            raise NotFound(f"No step {uid!r}.", field="step_uids")
    links = links_of(cursor, (owner for _, owner in where.values()))
    ordered = with_ancestors(links, (step_id for step_id, _ in where.values()))
    parts = token_parts(cursor, ordered)
    chosen = [where[uid][0] for uid in step_uids]
    n_prompt, lengths = _lengths(links, ordered, parts, chosen)
    offsets = np.zeros(len(chosen) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    logprobs = masked = None
    chosen_parts = [parts[step_id] for step_id in chosen]
    if any(part.logprobs is not None for part in chosen_parts):
        logprobs = np.full(offsets[-1], np.nan, np.float32)
        for part, end, n_response in zip(
            chosen_parts, offsets[1:].tolist(), (lengths - n_prompt).tolist(), strict=True
        ):
            if part.logprobs is not None and part.logprobs.size == n_response:
                logprobs[end - n_response : end] = part.logprobs
    if any(part.mask is not None for part in chosen_parts):
        masked = np.zeros(offsets[-1], np.bool_)
        for part, end in zip(chosen_parts, offsets[1:].tolist(), strict=True):
            if part.mask is not None:
                masked[end - part.mask.size : end] = part.mask == 0
    parent, n_shared = _deltas(links, parts, chosen)
    return Sequences(
        ids=_joined_ids(links, parts, chosen, offsets),
        offsets=offsets,
        n_prompt=n_prompt,
        logprobs=logprobs,
        step_uids=list(step_uids),
        parent=parent,
        n_shared=n_shared,
        masked=masked,
    )


def _lengths(
    links: Mapping[int, Link], ordered: Sequence[int], parts: Mapping[int, StepTokens], chosen: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of the prompt, and of prompt and response, of each of ``chosen``: int64 ``[n]`` each.

    PoolError if a step shares more tokens than its parent has.
    """
    n_prompt: dict[int, int] = {}
    n_whole: dict[int, int] = {}
    for step_id in ordered:
        link, part = links[step_id], parts[step_id]
        n_prompt[step_id] = 0 if part.prompt is None else part.prompt.size
        if part.prompt is not None and link.n_shared_tokens:
            above = 0 if link.parent_step_id is None else n_whole[link.parent_step_id]
            if above < link.n_shared_tokens:
                raise PoolError(
                    f"Step {step_id} shares {link.n_shared_tokens} tokens with its parent, which has {above}."
                )
            n_prompt[step_id] += link.n_shared_tokens
        n_whole[step_id] = n_prompt[step_id] + (0 if part.response is None else part.response.size)
    return (
        np.fromiter((n_prompt[step_id] for step_id in chosen), np.int64, len(chosen)),
        np.fromiter((n_whole[step_id] for step_id in chosen), np.int64, len(chosen)),
    )


def _joined_ids(
    links: Mapping[int, Link], parts: Mapping[int, StepTokens], chosen: Sequence[int], offsets: np.ndarray
) -> np.ndarray:
    """Prompts and responses of ``chosen`` one after another, int32; each token is copied once.

    What a step shares is copied from its parent's place in the result, or is put together from its ancestors' own
    tokens where the parent isn't chosen.
    """
    ids = np.empty(int(offsets[-1]), np.int32)
    begin_of: dict[int, int] = {}
    for i in sorted(range(len(chosen)), key=chosen.__getitem__):
        begin, end = int(offsets[i]), int(offsets[i + 1])
        at, n, step_id = begin, end - begin, chosen[i]
        while n:
            if step_id in begin_of:
                ids[at : at + n] = ids[begin_of[step_id] : begin_of[step_id] + n]
                break
            link, part = links[step_id], parts[step_id]
            n_shared = 0 if part.prompt is None else link.n_shared_tokens
            if n > n_shared:
                place = at + n_shared
                for piece in (part.prompt, part.response):
                    if piece is not None:
                        stop = min(at + n, place + piece.size)
                        ids[place:stop] = piece[: stop - place]
                        place = stop
                n = n_shared
            if n:
                assert link.parent_step_id is not None, "lengths were checked"
                step_id = link.parent_step_id
        begin_of.setdefault(chosen[i], begin)
    return ids


def _deltas(
    links: Mapping[int, Link], parts: Mapping[int, StepTokens], step_ids: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """For each step its nearest ancestor among ``step_ids`` and how many tokens lead both: int64 ``[n]`` each.

    The parent is an index into ``step_ids``, -1 for none. A step without prompt ids shares nothing that is known.
    """
    index = {step_id: i for i, step_id in reversed(list(enumerate(step_ids)))}
    parent, n_shared = np.full(len(step_ids), -1, np.int64), np.zeros(len(step_ids), np.int64)
    for i, step_id in enumerate(step_ids):
        at, shared = step_id, None
        while (above := links[at].parent_step_id) is not None and parts[at].prompt is not None:
            shared = links[at].n_shared_tokens if shared is None else min(shared, links[at].n_shared_tokens)
            at = above
            if at in index:
                parent[i], n_shared[i] = index[at], shared
                break
    return parent, n_shared
