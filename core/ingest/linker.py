"""The linker: holds the links of open trajectories in bounded memory and reloads evicted ones from the pool."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from cachetools import LRUCache

from core.dialects import RESPONSES
from core.ingest.opentrajectories import MAX_ANSWERS, MAX_OPEN, OpenTrajectories
from core.linking import (
    Call,
    Continuation,
    Link,
    MessageHasher,
    TrajectoryLinks,
    continuation,
    is_side_task,
    letters_of,
    opens_side_task,
    quotes_answer,
    task_prompt_uid,
)
from core.pool.store.append import ids_array
from core.pool.trajectories import Trajectories
from core.types import CallKind, IdentitySource, Source, Step

MAX_BYTES = 32 << 20
"""Memory for the tokens and hashes of trajectories, bytes."""
MAX_TRACES = 4096
"""The number of traces and connections, and of responses, whose trajectory is cached."""
MAX_RELOADED = 64
"""Open trajectories of inferred identity that are read back in full after a restart. Of others, only the answers."""
EQUAL_ATTEMPTS = "several attempts gave the same answers, and it is unknown which of them this call continues"
_CAPTURED = frozenset({Source.BLACKBOX, Source.SERVICE})
WEAK_EVIDENCE = "it repeats an answer of this trajectory, but has another beginning and another connection"
UNCERTAIN_PARENT = "the step that it continues is uncertain"


class Linker:
    """Turns drafts into linked steps. The result depends only on the pool and the order of drafts."""

    def __init__(self, trajectories: Trajectories, *, max_bytes: int = MAX_BYTES) -> None:
        self._stored = trajectories
        self._max_bytes = max_bytes
        self._hasher = MessageHasher()
        # cachetools.LRUCache does not fit: entries of the current batch are pinned, and entries grow in place.
        self._trajectories: OrderedDict[str, TrajectoryLinks] = OrderedDict()
        self._open: OpenTrajectories | None = None
        self._traces: LRUCache[str, str] = LRUCache(MAX_TRACES)
        self._responses: LRUCache[str, str] = LRUCache(MAX_TRACES)
        self._new: set[str] = set()
        self._pinned: set[str] = set()
        self._calls: dict[str, tuple[Step, Call]] = {}
        self._held = 0

    def forget(self) -> None:
        """Drop everything that is cached, for instance because the batch was rolled back."""
        self._trajectories.clear()
        self._held = 0
        self._open = None
        self._traces.clear()
        self._responses.clear()
        self._new.clear()
        self._pinned.clear()
        self._calls.clear()

    def drop(self, gone: Set[str], back: Set[str]) -> None:
        """Drop the cached links of trajectories that were deleted or restored. Restored ones are open again.

        Other trajectories stay cached, since thousands may be open.
        """
        for uid in gone | back:
            if (known := self._trajectories.pop(uid, None)) is not None:
                self._held -= known.n_bytes
            if self._open is not None:
                self._open.close(uid)
        if self._open is not None and back:
            self._note_earlier([uid for uid in self._stored.open_inferred(MAX_OPEN) if uid in back])

    def preload(self, drafts: Sequence[Step]) -> None:
        """Read back the trajectories that a batch needs, many per query.

        Otherwise each would be read by its own query after a start, when thousands are open.
        """
        named = {draft.trajectory_uid for draft in drafts}
        unknown = {uid for uid in named if uid and uid not in self._trajectories}
        known = self._stored.known(sorted(unknown)) if unknown else set()
        self._new = unknown - known
        for draft in drafts:
            if not draft.trajectory_uid:
                call = self._call(draft)
                self._calls[draft.step_uid] = draft, call
                known.update(*(uids for _, uids in islice(self._open_trajectories().candidates(call), 1)))
        self._load(sorted(uid for uid in known if uid not in self._trajectories))

    def batch_committed(self) -> None:
        """The batch is committed: its trajectories can be evicted, since they can be reloaded from the pool."""
        self._pinned.clear()
        self._calls.clear()
        self._evict()

    def close(self, trajectory_uid: str) -> None:
        """The trajectory is complete: no call of unknown identity joins it, and its registration ends."""
        if self._open is not None:
            self._open.close(trajectory_uid)
        if trajectory_uid in self._trajectories:
            self._trajectories[trajectory_uid].policy_version = None

    def register(self, trajectory_uid: str, metadata: Mapping[str, Any]) -> None:
        """Apply a registration: a ``policy_version`` in its metadata is set on the trajectory's later calls."""
        version = _version(metadata)
        if version is not None:
            self._links(trajectory_uid).policy_version = version

    def evidence(self, draft: Step) -> tuple[str | None, bool]:
        """(the trajectory that the call belongs to if known, whether an earlier call gave its prompt's last answer).

        An unknown answer may have been given by a call that is not visible yet. Prompts without answers, and those
        that are known as token ids only, give no evidence: True. Nothing is placed.
        """
        announced = self._calls.get(draft.step_uid)
        call = announced[1] if announced is not None and announced[0] is draft else self._call(draft)
        uid: str | None = draft.trajectory_uid or self._by_response(draft.metadata)
        uid = uid or self._infer(call, draft.metadata)[0] or self._by_trace(draft.metadata, call)
        if call.dialogue is None or "assistant" not in call.dialogue_roles:
            return uid, True
        return uid, uid is not None and self._links(uid).knows_last_answer(call)

    def has_steps(self, trajectory_uid: str) -> bool:
        """Whether a step of the trajectory was placed."""
        return bool(self._links(trajectory_uid).nodes)

    def finished_at(self, trajectory_uid: str) -> float | None:
        """When the latest placed call of the trajectory ended, UTC seconds; None without one."""
        return max((node.finished_at for node in self._links(trajectory_uid).nodes), default=None)

    def place(self, draft: Step, *, sibling_of: Step | None = None) -> Step:
        """Link one draft. ``sibling_of`` is the first choice of the same call."""
        announced = self._calls.get(draft.step_uid)
        call = announced[1] if announced is not None and announced[0] is draft else self._call(draft)
        trajectory_uid = sibling_of.trajectory_uid if sibling_of is not None else draft.trajectory_uid
        identity_source = draft.identity_source
        doubt: str | None = None
        if not trajectory_uid:
            known_uid = self._by_response(draft.metadata)
            if known_uid is None:
                known_uid, doubt = self._infer(call, draft.metadata)
            known_uid = known_uid or self._by_trace(draft.metadata, call)
            trajectory_uid = known_uid or self._mark_new(f"inferred-{draft.step_uid}")
            identity_source = IdentitySource.INFERRED
        elif sibling_of is not None:
            identity_source = sibling_of.identity_source
            doubt = sibling_of.metadata.get("uncertain")
        if doubt is not None:
            call = replace(call, uncertain=True)
        links = self._links(trajectory_uid)
        named_auxiliary = draft.metadata.get("call_kind") == CallKind.AUXILIARY and draft.source in _CAPTURED
        if named_auxiliary or (not links.nodes and self._opens_side_task(draft, call, identity_source)):
            call = replace(call, call_kind=CallKind.AUXILIARY)
        first_with_tools = call.has_tools and not links.has_tools
        before = links.n_bytes
        link = links.place(
            call,
            step_index=None if draft.step_index < 0 else draft.step_index,
            sibling=sibling_of is not None,
        )
        if identity_source == IdentitySource.INFERRED:
            self._remember_open(trajectory_uid, call)
            self._remember_trace(draft.metadata, trajectory_uid)
            if draft.dialect == RESPONSES.name:
                self._responses[draft.step_uid] = trajectory_uid
        prompt_uid = draft.prompt_uid
        if not prompt_uid:
            inherited = None if first_with_tools else links.prompt_uid
            n_prompt = call.n_system + links.nodes[links.by_uid[call.step_uid]].n_head
            named = inherited or task_prompt_uid(draft.messages, call.prompt, n_prompt)
            prompt_uid = named or links.prompt_uid or f"p-{trajectory_uid}"
        links.prompt_uid = prompt_uid
        self._held += links.n_bytes - before
        self._evict()
        stamp = links.policy_version if draft.source in _CAPTURED else None
        return replace(
            draft,
            policy_version=draft.policy_version if stamp is None else stamp,
            policy_version_end=draft.policy_version_end if stamp is None else stamp,
            metadata=draft.metadata if doubt is None else {**draft.metadata, "uncertain": doubt},
            trajectory_uid=trajectory_uid,
            prompt_uid=prompt_uid,
            identity_source=identity_source,
            step_index=link.step_index,
            parent_step_uid=link.parent_step_uid,
            n_shared_tokens=link.n_shared_tokens,
            n_shared_messages=link.n_shared_messages,
            transition=draft.transition or link.transition,
            call_kind=CallKind.AUXILIARY if named_auxiliary else link.call_kind,
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
            retry_count=draft.sampling.get("retry_count", 0),
            started_at=draft.created_at,
            finished_at=draft.created_at + (draft.latency_s or 0.0),
            connection=draft.metadata.get("connection"),
        )

    def _infer(self, call: Call, metadata: Mapping[str, Any]) -> tuple[str | None, str | None]:
        """(the open trajectory that this call continues, why that is not certain)."""
        opened = self._open_trajectories()
        for enough, uids in opened.candidates(call):
            candidates: list[tuple[str, Continuation]] = []
            for uid in uids:
                links = self._links(uid)
                if call.step_uid in links.by_uid:
                    return uid, None
                continued = continuation(links, call)
                if continued is not None:
                    candidates.append((uid, continued))
            if candidates:
                best = max(map(_fit, candidates))
                if best[0] < enough:
                    continue
                return self._choose([one for one in candidates if _fit(one) == best], call, metadata)
        return None, None

    def _choose(
        self, candidates: list[tuple[str, Continuation]], call: Call, metadata: Mapping[str, Any]
    ) -> tuple[str, str | None]:
        """The most likely of trajectories that fit equally well, and why it is not certain (None if it is)."""
        with_ids = [(uid, continued) for uid, continued in candidates if continued.by_ids]
        # The random call ids of an answer are proof.
        candidates = with_ids or candidates
        is_doubtful = len(with_ids) != 1 and any(continued.node.uncertain_child for _, continued in candidates)
        trace, remaining = metadata.get("trace_id"), candidates
        for fits in (
            lambda uid, continued: continued.node.system == call.system,
            # A call can't continue an answer that was not complete when it began.
            lambda uid, continued: continued.node.finished_at <= call.started_at,
            lambda uid, continued: trace is not None and self._traces.get(str(trace)) == uid,
            lambda uid, continued: call.connection is not None and continued.node.connection == call.connection,
            lambda uid, continued: not continued.node.continued,
        ):
            remaining = [(uid, continued) for uid, continued in remaining if fits(uid, continued)] or remaining
        # The attempt that finished first. If all attempts are equal so far, the choice makes no difference.
        uid, chosen = min(remaining, key=lambda pair: pair[1].node.finished_at)
        if chosen.node.uncertain:
            return uid, UNCERTAIN_PARENT
        if chosen.weak and not chosen.by_ids and call.connection != chosen.node.connection:
            return uid, WEAK_EVIDENCE
        return uid, EQUAL_ATTEMPTS if len(remaining) > 1 or is_doubtful else None

    def _open_trajectories(self) -> OpenTrajectories:
        """The open trajectories; those of the pool are read at first use."""
        if self._open is None:
            opened = self._open = OpenTrajectories()
            uids = self._stored.open_inferred(MAX_OPEN)
            latest = uids[-MAX_RELOADED:]
            self._note_earlier(uids[:-MAX_RELOADED])
            for uid in latest:
                opened.touch(uid)
            for uid in latest:
                if (known := self._trajectories.pop(uid, None)) is not None:
                    self._held -= known.n_bytes
            self._load(latest)
        return self._open

    def _note_earlier(self, trajectory_uids: list[str]) -> None:
        """Mark trajectories as open and remember only their answers, each with the message before it."""
        opened = self._open_trajectories()
        for uid in trajectory_uids:
            opened.touch(uid)
        hashes = self._hasher.hashes
        opened.note_answers(
            (uid, None if last is None else hashes(last)[1], hashes(answer)[1])
            for uid, last, answer in self._stored.answers(trajectory_uids, MAX_ANSWERS)
        )

    def _by_response(self, metadata: Mapping[str, Any]) -> str | None:
        """The open trajectory of the response that the call names as the previous one: no evidence is better."""
        step_uid = metadata.get("previous_step_uid")
        if not isinstance(step_uid, str):
            return None
        uid = self._responses.get(step_uid) or self._stored.of_step(step_uid)
        return uid if uid is not None and uid in self._open_trajectories() else None

    def _by_trace(self, metadata: Mapping[str, Any], call: Call) -> str | None:
        """The open trajectory of the same trace, or of the same connection if the call is a harness's side task.

        A side call shares no messages with its trajectory, but it may quote one of its answers.
        """
        uid = self._traces.get(str(metadata.get("trace_id")))
        if uid is None and is_side_task(call) and not call.has_tools:
            uid = self._traces.get(call.connection or "")
            if uid is None or uid not in self._open_trajectories() or not self._is_side_call_of(call, uid):
                uid = self._by_quote(call)
        return uid if uid is not None and uid in self._open_trajectories() else None

    def _is_side_call_of(self, call: Call, trajectory_uid: str) -> bool:
        """Whether no main call of the trajectory has this system prompt. Else it begins the next attempt."""
        nodes = self._links(trajectory_uid).nodes
        return all(node.kind != CallKind.MAIN or node.system != call.system for node in nodes)

    def _by_quote(self, call: Call) -> str | None:
        """The recent trajectory whose answer a harness's call quotes; None if there are several or none."""
        letters = letters_of(call.messages)
        quoted: dict[str, int] = {}
        for uid in self._open_trajectories().latest(MAX_RELOADED):
            for node in self._links(uid).nodes:
                work = node.kind == CallKind.MAIN and node.system != call.system
                if work and node.answer_fingerprint is not None and quotes_answer(letters, node.answer_fingerprint):
                    quoted[uid] = node.step_index
        return next(iter(quoted)) if len(quoted) == 1 else None

    @staticmethod
    def _opens_side_task(draft: Step, call: Call, identity_source: str) -> bool:
        """Whether a trajectory's first call is a harness's side task. A call with an explicit trajectory is not."""
        concluded = identity_source in (IdentitySource.INFERRED, IdentitySource.HARNESS)
        return concluded and draft.source in _CAPTURED and call.call_kind == CallKind.MAIN and opens_side_task(call)

    def _remember_open(self, trajectory_uid: str, call: Call) -> None:
        opened = self._open_trajectories()
        opened.touch(trajectory_uid)
        opened.note(trajectory_uid, call)

    def _remember_trace(self, metadata: Mapping[str, Any], trajectory_uid: str) -> None:
        for name in ("trace_id", "connection"):
            trace = metadata.get(name)
            if isinstance(trace, str):
                self._traces[trace] = trajectory_uid

    def _mark_new(self, trajectory_uid: str) -> str:
        self._new.add(trajectory_uid)
        return trajectory_uid

    def _links(self, trajectory_uid: str) -> TrajectoryLinks:
        if trajectory_uid not in self._trajectories:
            if trajectory_uid not in self._new:
                self._load([trajectory_uid])
            if trajectory_uid not in self._trajectories:
                self._keep(trajectory_uid, TrajectoryLinks())
        self._trajectories.move_to_end(trajectory_uid)
        self._pinned.add(trajectory_uid)
        return self._trajectories[trajectory_uid]

    def _load(self, trajectory_uids: Sequence[str]) -> None:
        """Read the links of trajectories back from the pool; those that it does not have stay unknown."""
        if not trajectory_uids:
            return
        for trajectory in self._stored.get_many(trajectory_uids):
            uid, links = trajectory["trajectory_uid"], TrajectoryLinks()
            if not trajectory["complete"]:
                links.policy_version = _version(trajectory["metadata"])
            for step in trajectory["steps"]:
                call = self._recall(links, step)
                if step["identity_source"] == IdentitySource.INFERRED:
                    self._remember_trace(step["metadata"], uid)
                    if self._open is not None:
                        self._open.note(uid, call)
            self._keep(uid, links)

    def _keep(self, trajectory_uid: str, links: TrajectoryLinks) -> None:
        self._held += links.n_bytes
        self._trajectories[trajectory_uid] = links
        self._pinned.add(trajectory_uid)

    def _recall(self, links: TrajectoryLinks, step: dict[str, Any]) -> Call:
        started_at = datetime.fromisoformat(step["created_at"]).timestamp()
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
            retry_count=step["sampling"].get("retry_count", 0),
            started_at=started_at,
            finished_at=started_at + (step["latency_s"] or 0.0),
            connection=step["metadata"].get("connection"),
            uncertain="uncertain" in step["metadata"],
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
        return call

    def _evict(self) -> None:
        while self._held > self._max_bytes and len(self._trajectories) > 1:
            uid = next(iter(self._trajectories))
            if uid in self._pinned:
                # The batch's changes to it are not in the pool yet, so it can't be reloaded.
                return
            self._held -= self._trajectories.pop(uid).n_bytes
            self._new.discard(uid)


def _fit(candidate: tuple[str, Continuation]) -> tuple[int, bool, int]:
    return candidate[1].m, candidate[1].has_answer, candidate[1].answer_match


def _version(metadata: Any) -> int | None:
    """The policy version that a registration names; None when it names none."""
    version = metadata.get("policy_version") if isinstance(metadata, Mapping) else None
    return version if isinstance(version, int) and not isinstance(version, bool) else None
