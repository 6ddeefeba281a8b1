"""The updates of a policy: for each acknowledged batch its stages in seconds, staleness, and the trainer's metrics."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from core.batch.pace import syncs
from core.pool import Pool

SECONDS = "seconds_"
"""Prefix of the metrics that trainers measure stages with: ``seconds_train`` is the stage ``train``."""
MOST_UPDATES = 400
DIFFERENCE_MEAN, DIFFERENCE_MAX = "logprob_difference_mean", "logprob_difference_max"
"""Metrics: captured against recomputed log-probs, nats."""


@dataclass(frozen=True, slots=True)
class Update:
    """One update of the weights.

    Attributes:
        batch_uid: the batch that it was made with.
        version: policy version in force when the batch was leased; None: unknown.
        update: the trainer's number of it.
        stages: seconds by stage: ``rollouts`` from first to last call of the version in the batch's channel, ``lease``
            from there until the batch was leased, the stages that the trainer measured (without ``fetch``, which
            overlaps with these), else ``train`` from lease to acknowledgement and ``sync`` of the next version.
        staleness_max: versions that its oldest step was behind.
        reward_mean: mean over its steps.
        metrics: the trainer's other metrics.
    """

    batch_uid: str
    consumer: str
    version: int | None
    update: int | None
    stages: Mapping[str, float]
    staleness_max: int | None
    reward_mean: float | None
    metrics: Mapping[str, float]

    @property
    def seconds(self) -> float | None:
        """Sum of the stages; None if none is known."""
        return math.fsum(self.stages.values()) if self.stages else None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON."""
        return asdict(self)


def updates(pool: Pool, channel: str, *, limit: int = MOST_UPDATES) -> list[Update]:
    """The newest acknowledged batches of a channel, oldest first."""
    batches = [row for row in pool.consumption.batches(channel=channel, limit=limit) if row["state"] == "acked"]
    measured: dict[str, dict[str, float]] = defaultdict(dict)
    for row in pool.batches.metrics() if batches else ():
        if row["value"] is not None:
            measured[row["batch_uid"]][row["name"]] = row["value"]
    called = {point.version: point for point in pool.learning.by_version(channel)}
    synced = {one.version: one.duration_s for one in syncs(pool.journal.policy_events())}
    result = []
    for row in reversed(batches):
        metrics, version = measured[row["batch_uid"]], row["policy_version"]
        stages: dict[str, float] = {}
        point = None if version is None else called.get(version)
        if point is not None and point.started_at is not None and point.ended_at is not None:
            stages["rollouts"] = point.ended_at - point.started_at
            stages["lease"] = max(0.0, row["leased_at"] - point.ended_at)
        named = {name.removeprefix(SECONDS): value for name, value in metrics.items() if name.startswith(SECONDS)}
        if not named:
            named = {"train": row["finished_at"] - row["leased_at"]}
            took = None if version is None else synced.get(version + 1)
            if took is not None:
                named["sync"] = took
        elif "rollouts" in stages:
            named.pop("fetch", None)
        rest = {name: value for name, value in metrics.items() if not name.startswith(SECONDS)}
        result.append(
            Update(
                row["batch_uid"], row["consumer"], version, row["update_index"], stages | named,
                row["staleness_max"], row["reward_mean"], rest,
            )
        )  # fmt: skip
    return result


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of an attempt: what the policy answered, and the next message that it then got (None at the end)."""

    step_uid: str
    action: str
    result: str | None


def turns(pool: Pool, trajectory_uid: str) -> list[Turn]:
    """The turns of a trajectory in order. NotFound when there is none."""
    steps = [step for step in pool.trajectories.get(trajectory_uid)["steps"] if step["call_kind"] == "main"]
    result = []
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        message = None if following is None else (following["messages"] or [None])[-1]
        result.append(
            Turn(step["step_uid"], _text(step["response_message"]), None if message is None else _text(message))
        )
    return result


def first_difference(before: Sequence[Turn], after: Sequence[Turn]) -> int | None:
    """Place of the first turn whose actions differ, or that only one of the two has; None if all are equal."""
    for place, (one, other) in enumerate(zip(before, after, strict=False)):
        if one.action != other.action:
            return place
    return None if len(before) == len(after) else min(len(before), len(after))


def _text(message: Mapping[str, Any] | None) -> str:
    """A message's text and tool calls, one a line."""
    if message is None:
        return ""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    lines = [str(part.get("text", part.get("type", ""))) for part in parts if isinstance(part, Mapping)]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        lines.append(f"{function.get('name')}({function.get('arguments')})")
    return "\n".join(line for line in lines if line)
