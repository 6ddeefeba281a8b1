"""The linker: keeps the open trajectories' links in bounded memory and reloads them from the pool."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from core.linking import Call, Link, MessageHasher, TrajectoryLinks, continuation, task_prompt_uid
from core.pool import Pool
from core.pool.append import ids_array
from core.types import IdentitySource, Step

MAX_BYTES = 128 << 20
"""Memory for the tokens and hashes of trajectories, bytes."""
MAX_OPEN = 256
"""Trajectories of inferred identity that a call may continue."""
MAX_TRACES = 1024
"""Traces whose trajectory is remembered."""
MAX_RELOADED = 64
"""How many of them are read back after a restart."""


class Linker:
    """Turns drafts into linked steps. What it concludes depends only on the pool and the order of drafts."""

    def __init__(self, pool: Pool, *, max_bytes: int = MAX_BYTES) -> None:
        self._pool = pool
        self._max_bytes = max_bytes
        self._hasher = MessageHasher()
        self._trajectories: OrderedDict[str, TrajectoryLinks] = OrderedDict()
        self._open: OrderedDict[str, None] | None = None
        self._traces: OrderedDict[str, str] = OrderedDict()
        self._new: set[str] = set()
        self._held = 0

    def forget(self) -> None:
        """Drop everything that is cached, for instance because the batch was rolled back."""
        self._trajectories.clear()
        self._held = 0
        self._open = None
        self._traces.clear()
        self._new.clear()

    def announce(self, trajectory_uids: Iterable[str]) -> None:
        """Ask the pool once which of a batch's trajectories it knows."""
        asked = {uid for uid in trajectory_uids if uid and uid not in self._trajectories}
        self._new = asked - self._pool.known_trajectories(sorted(asked)) if asked else set()

    def close(self, trajectory_uid: str) -> None:
        """The trajectory is complete: no call of unknown identity joins it any more."""
        if self._open is not None:
            self._open.pop(trajectory_uid, None)

    def place(self, draft: Step, *, sibling_of: Step | None = None) -> Step:
        """Link one draft. ``sibling_of`` is the first choice of the same call."""
        call = self._call(draft)
        trajectory_uid = sibling_of.trajectory_uid if sibling_of is not None else draft.trajectory_uid
        identity_source = draft.identity_source
        if not trajectory_uid:
            found = self._infer(call) or self._traced(draft.metadata)
            trajectory_uid = found or self._begin(f"inferred-{draft.step_uid}")
            identity_source = IdentitySource.INFERRED
        links = self._links(trajectory_uid)
        if identity_source == IdentitySource.INFERRED:
            self._remember_open(trajectory_uid)
            self._remember_trace(draft.metadata, trajectory_uid)
        first_with_tools = call.has_tools and not links.has_tools
        before = links.n_bytes
        link = links.place(
            call,
            step_index=None if draft.step_index < 0 else draft.step_index,
            sibling=sibling_of is not None,
        )
        prompt_uid = draft.prompt_uid
        if not prompt_uid:
            inherited = None if first_with_tools else links.prompt_uid
            named = inherited or task_prompt_uid(draft.messages, call.prompt)
            prompt_uid = named or links.prompt_uid or f"p-{trajectory_uid}"
        links.prompt_uid = prompt_uid
        self._held += links.n_bytes - before
        self._evict()
        return replace(
            draft,
            trajectory_uid=trajectory_uid,
            prompt_uid=prompt_uid,
            identity_source=identity_source,
            step_index=link.step_index,
            parent_step_uid=link.parent_step_uid,
            n_shared_tokens=link.n_shared_tokens,
            n_shared_messages=link.n_shared_messages,
            transition=draft.transition or link.transition,
            call_kind=link.call_kind,
        )

    def _call(self, draft: Step) -> Call:
        return self._hasher.call(
            step_uid=draft.step_uid,
            prompt=ids_array(draft.prompt_ids),
            response=ids_array(draft.response_ids),
            messages=draft.messages,
            response_message=draft.response_message,
            tools=draft.tools,
            source=draft.source,
            status=draft.status,
            call_kind=draft.call_kind,
        )

    def _infer(self, call: Call) -> str | None:
        """The open trajectory that this call continues best; of equals the latest."""
        if self._open is None:
            self._open = OrderedDict((uid, None) for uid in self._pool.open_inferred(MAX_RELOADED))
        best: str | None = None
        score = (False, 0)
        answers = "assistant" in call.talk_roles
        for uid in list(self._open):
            links = self._links(uid)
            if call.step_uid in links.by_uid:
                return uid
            # A call that holds nobody's answer continues nothing.
            found = continuation(links, call) if answers else None
            if found is not None and found >= score:
                best, score = uid, found
        return best

    def _traced(self, metadata: Mapping[str, Any]) -> str | None:
        """The open trajectory whose calls carry the same trace: side calls of one turn share nothing else."""
        uid = self._traces.get(str(metadata.get("trace_id")))
        return uid if uid is not None and self._open is not None and uid in self._open else None

    def _remember_trace(self, metadata: Mapping[str, Any], trajectory_uid: str) -> None:
        trace = metadata.get("trace_id")
        if isinstance(trace, str):
            self._traces[trace] = trajectory_uid
            self._traces.move_to_end(trace)
            while len(self._traces) > MAX_TRACES:
                self._traces.popitem(last=False)

    def _begin(self, trajectory_uid: str) -> str:
        self._new.add(trajectory_uid)
        return trajectory_uid

    def _remember_open(self, trajectory_uid: str) -> None:
        if self._open is None:
            self._open = OrderedDict((uid, None) for uid in self._pool.open_inferred(MAX_RELOADED))
        self._open[trajectory_uid] = None
        self._open.move_to_end(trajectory_uid)
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)

    def _links(self, trajectory_uid: str) -> TrajectoryLinks:
        links = self._trajectories.get(trajectory_uid)
        if links is None:
            links = TrajectoryLinks()
            if trajectory_uid not in self._new and self._pool.knows_trajectory(trajectory_uid):
                for step in self._pool.trajectory(trajectory_uid)["steps"]:
                    self._recall(links, step)
                    if step["identity_source"] == IdentitySource.INFERRED:
                        self._remember_trace(step["metadata"], trajectory_uid)
            self._held += links.n_bytes
            self._trajectories[trajectory_uid] = links
        self._trajectories.move_to_end(trajectory_uid)
        return links

    def _recall(self, links: TrajectoryLinks, step: dict[str, Any]) -> None:
        call = self._hasher.call(
            step_uid=step["step_uid"],
            prompt=step["prompt_ids"],
            response=step["response_ids"],
            messages=step["messages"],
            response_message=step["response_message"],
            tools=step["tools"],
            source=step["source"],
            status=step["status"],
            call_kind=step["call_kind"],
        )
        link = Link(
            step_index=step["step_index"],
            parent_step_uid=step["parent_step_uid"],
            n_shared_tokens=step["n_shared_tokens"],
            n_shared_messages=step["n_shared_messages"],
            transition=step["transition"],
            call_kind=step["call_kind"],
        )
        if links.prompt_uid is None or (call.has_tools and not links.has_tools):
            links.prompt_uid = step["prompt_uid"]
        links.remember(call, link)

    def _evict(self) -> None:
        while self._held > self._max_bytes and len(self._trajectories) > 1:
            uid, links = self._trajectories.popitem(last=False)
            self._held -= links.n_bytes
            self._new.discard(uid)
            if self._open is not None:
                self._open.pop(uid, None)
