"""A dataset version as what plans and exporters read: frozen labels, the pool's tokens, redaction over both."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from core.batch.redact import TrajectoryReader
from core.errors import InvalidInput
from core.pool.redaction import parse_redaction
from core.pool.versions import LABELS, Snapshot
from core.tree.sequences import Sequences
from core.types import PolicyEvent, View


class VersionStore(TrajectoryReader, Protocol):
    """What versions ask of the pool: see ``core.pool.versions``."""

    def snapshot(self, view: View, *, channel: str, value_model: str | None = None) -> Snapshot: ...  # noqa: D102
    def store_version(  # noqa: D102
        self, head: Mapping[str, Any], members: pa.Table, said: pa.Table, values: pa.Table | None
    ) -> dict[str, Any]: ...
    def view(self, name: str) -> View: ...  # noqa: D102
    def dataset_version(self, name: str) -> dict[str, Any]: ...  # noqa: D102
    def version_rows(self, name: str) -> pa.Table: ...  # noqa: D102
    def version_labels(self, name: str, trajectory_uid: str) -> list[dict[str, Any]]: ...  # noqa: D102
    def version_masks(self, name: str) -> dict[str, tuple[list[int], list[int], int]]: ...  # noqa: D102
    def version_policy_events(self, name: str) -> list[PolicyEvent]: ...  # noqa: D102
    def adopted_reward_policy(self, channel: str) -> dict[str, Any] | None: ...  # noqa: D102
    def resolved_policy(self, spec: Any) -> dict[str, Any]: ...  # noqa: D102
    def version_rewards(self, name: str, policy: Any) -> pa.Table: ...  # noqa: D102
    def version_values(self, name: str, step_uids: Any, model: str) -> pa.Array: ...  # noqa: D102
    def sequences(self, step_uids: Sequence[str]) -> Sequences: ...  # noqa: D102
    def credit_fields(self, step_uids: Any, fields: Sequence[str]) -> pa.Table: ...  # noqa: D102


class VersionSource:
    """A version as what plans and exporters read: frozen labels, the pool's tokens, redaction over both."""

    def __init__(self, pool: VersionStore, name: str) -> None:
        self._pool = pool
        self.head = pool.dataset_version(name)
        self.name: str = self.head["version_uid"]
        told = self.head["redaction"]
        self.redaction = None if told is None else parse_redaction({k: v for k, v in told.items() if k != "report"})
        self._masks = {} if told is None else pool.version_masks(self.name)

    @property
    def view(self) -> View:
        """The view that was frozen."""
        return View(self.head["view"]["filters"], self.head["view"]["where"])

    def about(self) -> dict[str, Any]:
        """What a plan says of the version that it was made from."""
        told = ("name", "version_uid", "content_hash", "parent", "author", "created_at", "provenance", "redaction")
        return {**{key: self.head[key] for key in told}, "has_masks": self.has_masks}

    def hash_of(self, plan_hash: str) -> str:
        """The hash of a plan made from the version: it covers the content that was frozen."""
        return hashlib.sha256(f"{plan_hash} {self.head['content_hash']}".encode()).hexdigest()

    @property
    def has_masks(self) -> bool:
        """Whether tokens of the version are redacted."""
        return bool(self._masks)

    def plan_rows(self, view: View, *, channel: str) -> pa.Table:
        """The members. InvalidInput for another channel than the frozen one; the view is the frozen one."""
        if channel != self.head["channel"]:
            raise InvalidInput(
                f"The version holds channel {self.head['channel']!r}.",
                field="recipe.channel",
                hint="A version is of one channel.",
            )
        return self._pool.version_rows(self.name)

    def credit_fields(self, step_uids: Any, fields: Sequence[str]) -> pa.Table:
        """Facts, which never change."""
        return self._pool.credit_fields(step_uids, fields)

    def policy_events(self) -> Sequence[PolicyEvent]:
        """As they were."""
        return self._pool.version_policy_events(self.name)

    def trajectory_rewards(self, policy: Any, *, channel: str) -> pa.Table:
        """By what each source had said when the version was frozen."""
        return self._pool.version_rewards(self.name, policy)

    def step_values(self, step_uids: Any, model: str) -> pa.Array:
        """As they were."""
        return self._pool.version_values(self.name, step_uids, model)

    def sequences(self, step_uids: Sequence[str]) -> Sequences:
        """The pool's, redacted tokens replaced in place: ``masked`` there, no log-prob."""
        found = self._pool.sequences(step_uids)
        if not any(uid in self._masks for uid in step_uids):
            return found if not self._masks else replace(found, masked=np.zeros(len(found.ids), dtype=np.bool_))
        ids, masked = found.ids.copy(), np.zeros(len(found.ids), dtype=np.bool_)
        for i, uid in enumerate(step_uids):
            if uid in self._masks:
                starts, ends, mask_id = self._masks[uid]
                for start, end in zip(starts, ends, strict=True):
                    at = slice(int(found.offsets[i]) + start, int(found.offsets[i]) + end)
                    ids[at], masked[at] = mask_id, True
        logprobs = found.logprobs
        if logprobs is not None:
            logprobs = np.where(masked, np.float32(np.nan), logprobs)
        return replace(found, ids=ids, masked=masked, logprobs=logprobs, n_shared=_still_shared(found, ids))

    def trajectory(self, trajectory_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        """The trajectory's members with their labels as frozen, in plan order; texts and tokens redacted."""
        found = self._pool.trajectory(trajectory_uid, tokens=tokens)
        by_uid = {step["step_uid"]: step for step in found["steps"]}
        labels = self._pool.version_labels(self.name, trajectory_uid)
        steps = [{**by_uid[row["step_uid"]], **{name: row[name] for name in LABELS}} for row in labels]
        if self.redaction is not None:
            steps = [self._clean(step) for step in steps]
        if labels:
            found |= {
                "reward": labels[0]["trajectory_reward"],
                "quality": labels[0]["trajectory_quality"],
                "complete": labels[0]["complete"],
                "prompt_uid": labels[0]["prompt_uid"],
            }
        return {**found, "channel": self.head["channel"], "steps": steps}

    def _clean(self, step: dict[str, Any]) -> dict[str, Any]:
        assert self.redaction is not None
        texts = ("messages", "response_message", "tools", "metadata", "preview", "error")
        made = {**step, **{name: self.redaction.clean(step[name]) for name in texts if name in step}}
        if step["step_uid"] in self._masks and "prompt_ids" in step:
            made |= _masked_tokens(step, *self._masks[step["step_uid"]])
        return made


def _masked_tokens(step: Mapping[str, Any], starts: list[int], ends: list[int], mask_id: int) -> dict[str, Any]:
    prompt, response, logprobs = step["prompt_ids"], step["response_ids"], step["response_logprobs"]
    n_prompt = 0 if prompt is None else len(prompt)
    n_response = 0 if response is None else len(response)
    masked = np.zeros(n_prompt + n_response, dtype=np.bool_)
    for start, end in zip(starts, ends, strict=True):
        masked[start:end] = True
    return {
        "prompt_ids": None if prompt is None else np.where(masked[:n_prompt], np.int32(mask_id), prompt),
        "response_ids": None if response is None else np.where(masked[n_prompt:], np.int32(mask_id), response),
        "response_logprobs": logprobs
        if logprobs is None or len(logprobs) != n_response
        else np.where(masked[n_prompt:], np.float32(np.nan), logprobs),
    }


def _still_shared(found: Sequences, ids: np.ndarray) -> np.ndarray | None:
    """``n_shared`` where the replaced ids still agree: what is known of sharing stays true."""
    if found.parent is None or found.n_shared is None:
        return found.n_shared
    shared = found.n_shared.copy()
    for i, (parent, n) in enumerate(zip(found.parent.tolist(), found.n_shared.tolist(), strict=True)):
        if parent >= 0 and n:
            own, other = int(found.offsets[i]), int(found.offsets[parent])
            differs = np.flatnonzero(ids[own : own + n] != ids[other : other + n])
            shared[i] = differs[0] if len(differs) else n
    return shared
