"""A dataset version as a plan source: its frozen labels and the pool's tokens, both redacted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from core.batch.redact import TEXT_FIELDS
from core.batch.source import PlanPool
from core.errors import InvalidInput
from core.pool.edits import Edit, is_reference
from core.pool.query.members import MemberFilter
from core.pool.redaction.cleaning import clean_conversation
from core.pool.redaction.rules import parse_redaction
from core.pool.state.policyversion import reported_version
from core.pool.versions import LABELS
from core.tree.sequences import Sequences
from core.types import View


class VersionSource:
    """A version as what plans and exporters read: frozen labels, the pool's tokens, redaction over both."""

    def __init__(self, pool: PlanPool, name: str) -> None:
        self._versions, self._facts = pool.versions, pool.training
        self.head = pool.versions.get(name)
        self.name: str = self.head["version_uid"]
        redaction = self.head["redaction"]
        self.redaction = (
            None if redaction is None else parse_redaction({k: v for k, v in redaction.items() if k != "report"})
        )
        self._masks = {} if redaction is None else pool.versions.masks(self.name)

    @property
    def view(self) -> View:
        """The view that was frozen."""
        return View(self.head["view"]["filters"], self.head["view"]["where"])

    def plan_reference(self) -> dict[str, Any]:
        """The plan's reference to its dataset version."""
        keys = ("name", "version_uid", "content_hash", "parent", "author", "created_at", "provenance", "redaction")
        about = {**{key: self.head[key] for key in keys}, "has_masks": self.has_masks}
        if self.redaction is not None:
            about["redaction"] = {**self.redaction.to_public_json(), "report": self.head["redaction"].get("report")}
        return about

    def hash_of(self, plan_hash: str) -> str:
        """The hash of a plan made from the version: it covers the content that was frozen, and how it was redacted."""
        rules = None if self.redaction is None else self.redaction.to_json()
        content = orjson.dumps([plan_hash, self.head["content_hash"], rules], option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(content).hexdigest()

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
        return self._versions.rows(self.name)

    def credit_fields(self, step_uids: Any, fields: Sequence[str]) -> pa.Table:
        """Facts of the pool, which never change."""
        return self._facts.credit_fields(step_uids, fields)

    def step_fields(self, step_ids: np.ndarray, fields: Sequence[str]) -> pa.Table:
        """Facts of the pool, which never change."""
        return self._facts.step_fields(step_ids, fields)

    def facts_hashes(self, step_ids: np.ndarray) -> pa.ChunkedArray:
        """Of the pool's facts, which never change."""
        return self._facts.facts_hashes(step_ids)

    def edits(self) -> list[Edit]:
        """The edited answers at the time of freezing; none that redaction would have changed."""
        return self._versions.edits(self.name)

    def version_in_force(self, channel: str) -> int | None:
        """The version at the time of freezing: the last reported one, else the newest of its members."""
        reported = reported_version(self._versions.policy_events(self.name))
        newest: int | None = self.head["provenance"]["policy_version_max"]
        return newest if reported is None else reported

    def trajectory_rewards(self, policy: Any, *, channel: str) -> pa.Table:
        """Rewards by a policy over the rewards that each source had given when the version was frozen."""
        return self._versions.rewards(self.name, policy)

    def step_values(self, step_uids: Any, model: str) -> pa.Array:
        """The values at the time of freezing."""
        return self._versions.values(self.name, step_uids, model)

    def sequences(self, step_uids: Sequence[str]) -> Sequences:
        """The pool's, redacted tokens replaced in place: ``masked`` there, no log-prob."""
        sequences = self._facts.sequences(step_uids)
        if not any(uid in self._masks for uid in step_uids):
            return sequences
        ids = sequences.ids.copy()
        masked = np.zeros(len(ids), dtype=np.bool_) if sequences.masked is None else sequences.masked.copy()
        for i, uid in enumerate(step_uids):
            if uid in self._masks:
                starts, ends, mask_id = self._masks[uid]
                for start, end in zip(starts, ends, strict=True):
                    at = slice(int(sequences.offsets[i]) + start, int(sequences.offsets[i]) + end)
                    ids[at], masked[at] = mask_id, True
        logprobs = sequences.logprobs
        if logprobs is not None:
            logprobs = np.where(masked, np.float32(np.nan), logprobs)
        return replace(sequences, ids=ids, masked=masked, logprobs=logprobs, n_shared=_still_shared(sequences, ids))

    def trajectory(self, trajectory_uid: str, *, tokens: bool = True) -> dict[str, Any]:
        """The trajectory's members with their labels as frozen, in plan order; texts and tokens redacted."""
        return self._as_frozen(trajectory_uid, self._facts.trajectory(trajectory_uid, tokens=tokens))

    def trajectories(self, trajectory_uids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Several of them, in the order given."""
        return map(self._as_frozen, trajectory_uids, self._facts.trajectories(trajectory_uids))

    def _as_frozen(self, trajectory_uid: str, trajectory: dict[str, Any]) -> dict[str, Any]:
        if is_reference(trajectory_uid):
            return trajectory
        by_uid = {step["step_uid"]: step for step in trajectory["steps"]}
        labels = self._versions.labels(self.name, trajectory_uid)
        steps = [{**by_uid[row["step_uid"]], **{name: row[name] for name in LABELS}} for row in labels]
        if self.redaction is not None:
            known: dict[int, Any] = {}
            steps = [self._clean(step, known) for step in steps]
        if labels:
            trajectory |= {
                "reward": labels[0]["trajectory_reward"],
                "quality": labels[0]["trajectory_quality"],
                "complete": labels[0]["complete"],
                "prompt_uid": labels[0]["prompt_uid"],
            }
        if self.redaction is not None:
            trajectory = {
                name: value if name == "steps" else self.redaction.clean(value) for name, value in trajectory.items()
            }
        return {**trajectory, "channel": self.head["channel"], "steps": steps}

    def _clean(self, step: dict[str, Any], known: dict[int, Any]) -> dict[str, Any]:
        """The step redacted. ``known``: cleaned parts by identity, so that shared parts are cleaned once."""
        assert self.redaction is not None
        rules = self.redaction
        texts = (*TEXT_FIELDS, "tools", "tags", "preview", "prompt_preview")
        cleaned = {**step, **{name: rules.clean(step[name]) for name in texts if name in step}}
        if "messages" in step:
            cleaned["messages"], cleaned["response_message"] = clean_conversation(
                rules, step["messages"], step["response_message"], known
            )
        if step["step_uid"] in self._masks and "prompt_ids" in step:
            cleaned |= _masked_tokens(step, *self._masks[step["step_uid"]])
        return cleaned


def _masked_tokens(step: Mapping[str, Any], starts: list[int], ends: list[int], mask_id: int) -> dict[str, Any]:
    prompt, response, logprobs = step["prompt_ids"], step["response_ids"], step["response_logprobs"]
    n_prompt = 0 if prompt is None else len(prompt)
    n_response = 0 if response is None else len(response)
    masked = np.zeros(n_prompt + n_response, dtype=np.bool_)
    for start, end in zip(starts, ends, strict=True):
        masked[start:end] = True
    response_mask = step["response_mask"]
    if masked[n_prompt:].any():
        every = np.ones(n_response, dtype=np.uint8) if response_mask is None else response_mask
        response_mask = np.where(masked[n_prompt:], np.uint8(0), every)
    return {
        "response_mask": response_mask,
        "prompt_ids": None if prompt is None else np.where(masked[:n_prompt], np.int32(mask_id), prompt),
        "response_ids": None if response is None else np.where(masked[n_prompt:], np.int32(mask_id), response),
        "response_logprobs": logprobs
        if logprobs is None or len(logprobs) != n_response
        else np.where(masked[n_prompt:], np.float32(np.nan), logprobs),
    }


def _still_shared(sequences: Sequences, ids: np.ndarray) -> np.ndarray | None:
    """``n_shared``, shortened where masked ids differ between a step and its parent."""
    if sequences.parent is None or sequences.n_shared is None:
        return sequences.n_shared
    shared = sequences.n_shared.copy()
    for i, (parent, n) in enumerate(zip(sequences.parent.tolist(), sequences.n_shared.tolist(), strict=True)):
        if parent >= 0 and n:
            start, parent_start = int(sequences.offsets[i]), int(sequences.offsets[parent])
            differs = np.flatnonzero(ids[start : start + n] != ids[parent_start : parent_start + n])
            shared[i] = differs[0] if len(differs) else n
    return shared


def member_rows(
    pool: PlanPool, name: str, chosen: MemberFilter | None = None, *, order: str = "place", limit: int, offset: int = 0
) -> pa.Table:
    """A page of a version's members as ``pool.versions.members`` gives them, their previews redacted as the version."""
    rows = pool.versions.members(name, chosen, order=order, limit=limit, offset=offset)
    rules = pool.versions.get(name)["redaction"]
    if rules is None:
        return rows
    redaction = parse_redaction({key: value for key, value in rules.items() if key != "report"})
    assert redaction is not None, "a redacted version has rules"
    cleaned = pa.array([redaction.clean(text) for text in rows["preview"].to_pylist()], pa.string())
    return rows.set_column(rows.column_names.index("preview"), "preview", cleaned)
