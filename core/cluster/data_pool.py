"""Claw-R1's ``data_pool`` actor on the studio's HTTP API: its trainers fetch their batches from the pool.

``core.cluster.claw_r1`` puts the class in the place of Claw-R1's own. Claw-R1 makes the actor, names it, and gives it
the training backend that turns steps into a ``DataProto``; so the batch is built by Claw-R1's own code.

A batch is acknowledged when its channel is asked for the next one. Groups are given first come, first served, among
those that are ready: a group that is not complete does not hold back those behind it. Until a trajectory is complete,
none of its steps is given. The actor holds no steps: a restart loses nothing.

It runs in Claw-R1's environment, so it uses the standard library, and pyarrow for large batches.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from core.client import StudioClient, new_uid
from core.cluster.data_pool_rows import Rows
from core.errors import InvalidInput, NotFound
from core.trainer import Batch, Trainer

T = TypeVar("T")

TRAIN = "train"
POLL_S = 2.0
"""Longest time until a waiting fetch sees a shutdown, seconds."""
PAGE = 1000
LONGEST = 1 << 24
"""Longest step where the training backend has no limits, tokens."""


@dataclass
class Step:
    """A step with the fields of Claw-R1's ``Step``; ``rollout_log_probs`` in nats, None if one of them is unknown."""

    prompt_ids: list[int]
    response_ids: list[int]
    reward: float | None = None
    multi_modal_data: dict[str, Any] | None = None
    rollout_log_probs: list[float] | None = None
    routed_experts: Any = None
    trajectory_uid: str = ""
    prompt_uid: str = ""
    step_index: int = 0
    policy_version: int = 0
    is_last: bool = False
    metadata: dict[str, Any] | None = None


@dataclass(frozen=True)
class Options:
    """Where the steps are, and which of them are given.

    Attributes:
        url: of the studio or a gateway; ``CLAW_DATA_POOL_URL``.
        api_key: its admin key; ``CLAW_STUDIO_API_KEY``.
        consumer: name of the leases; ``CLAW_DATA_POOL_CONSUMER``.
        recipe: further fields of the recipe, such as ``max_staleness``; JSON in ``CLAW_DATA_POOL_RECIPE``.
        earlier: whether steps are given that were captured before the actor began; ``CLAW_DATA_POOL_EARLIER=1``.
    """

    url: str = "http://localhost:8100"
    api_key: str | None = None
    consumer: str = "claw-r1"
    recipe: Mapping[str, Any] | None = None
    earlier: bool = False

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Options:
        """From environment variables. InvalidInput: the recipe is no JSON object."""
        text = environment.get("CLAW_DATA_POOL_RECIPE") or "{}"
        try:
            recipe = json.loads(text)
        except json.JSONDecodeError:
            recipe = None
        if not isinstance(recipe, dict):
            raise InvalidInput(
                f"{text!r} is no JSON object", field="CLAW_DATA_POOL_RECIPE", hint='for instance {"max_staleness": 2}'
            )
        return cls(
            url=environment.get("CLAW_DATA_POOL_URL") or cls.url,
            api_key=environment.get("CLAW_STUDIO_API_KEY"),
            consumer=environment.get("CLAW_DATA_POOL_CONSUMER") or cls.consumer,
            recipe=recipe,
            earlier=environment.get("CLAW_DATA_POOL_EARLIER") == "1",
        )


class Channel:
    """The batches of one channel. A fetch acknowledges the batch before it.

    Args:
        client: of the studio.
        options: of the actor.
        name: of the channel.
        since: steps captured before are not given (seconds since the epoch); None: all.
        limits: recipe fields on the lengths of steps.
    """

    def __init__(
        self, client: StudioClient, options: Options, name: str, since: float | None, limits: Mapping[str, int]
    ) -> None:
        self._client = client
        self._table = Rows(client, None)
        self._name = name
        self._recipe = {
            "algorithm": "sft",
            "options": {"min_reward": None, "edits": "without"},
            **limits,
            **(options.recipe or {}),
            "channel": name,
        }
        where = "" if since is None else f"created_at >= TIMESTAMP '{datetime.fromtimestamp(since, UTC):%F %T.%f}'"
        view = {"filters": {}, "where": where}
        self._trainer = Trainer(client, options.consumer, guard=None, channel=name, view=view)
        if options.earlier:
            self._trainer.reclaim()
        self._one_at_a_time = threading.Lock()
        self._batch: Batch | None = None
        self.n_groups = 0
        self.n_fetches = 0
        self.last: dict[str, Any] | None = None

    def fetch(self, batch_size: int, n_rollouts: int, ended: threading.Event) -> list[tuple[Step, list[int] | None]]:
        """Wait for the next batch: its steps, each with its response mask (None: all ones).

        Empty if ``ended`` is set and too few groups are ready. Steps that were on disk before are seen then.
        """
        wanted = {**self._recipe, "batch_size": batch_size, "min_rollouts": n_rollouts}
        with self._one_at_a_time:
            if self._batch is not None:
                self._batch.ack(update=self._batch.number)
                self._batch = None
            while True:
                over = ended.is_set()
                batch = self._trainer.fetch(0.0 if over else POLL_S, recipe=wanted)
                if batch is not None:
                    break
                if over:
                    return []
            self._batch = batch
            rows = self._rows(batch)
            self.n_groups += len(batch.groups)
            self.n_fetches += 1
            self.last = {
                "fetch_count": self.n_fetches,
                "batch_size": batch_size,
                "n_rollouts": n_rollouts,
                "prompt_uids": [group["prompt_uid"] for group in batch.groups],
                "step_count": len(rows),
                "fetched_at": time.time(),
            }
            return rows

    def _rows(self, batch: Batch) -> list[tuple[Step, list[int] | None]]:
        planned = self._client.call("GET", f"/api/v1/batches/{batch.uid}", repeat=True)["steps"]
        shares = {row["step_uid"]: row["reward_share"] for row in planned}
        metadata = self._metadata(batch)
        # The order of Claw-R1's pool; the studio's order within a group is that of time.
        rows = sorted(batch.steps, key=lambda row: (row["group"], row["trajectory_uid"], row["step_index"]))
        ends = {row["trajectory_uid"]: row["step_uid"] for row in rows}
        steps = []
        for row in rows:
            uid, logprobs = row["step_uid"], row["response_logprobs"]
            step = Step(
                prompt_ids=row["prompt_ids"],
                response_ids=row["response_ids"],
                # Of a trajectory without a reward nothing is known, not even that a step earned nothing.
                reward=None if row["trajectory_reward"] is None else shares[uid],
                rollout_log_probs=None if logprobs is None or None in logprobs else logprobs,
                trajectory_uid=row["trajectory_uid"],
                prompt_uid=row["prompt_uid"],
                step_index=row["step_index"],
                policy_version=row["policy_version"] or 0,
                is_last=ends[row["trajectory_uid"]] == uid,
                metadata=metadata[uid] or None,
            )
            steps.append((step, row["response_mask"]))
        return steps

    def _metadata(self, batch: Batch) -> dict[str, dict[str, Any]]:
        """By step uid: of submitted steps their own metadata, of captured calls what was registered."""
        listed = [step for group in batch.groups for step in self._listed(group["prompt_uid"])]
        captured = {step["trajectory_uid"] for step in listed if step["source"] != "whitebox"}
        registered = self._table.registered(sorted(captured))
        return {
            step["step_uid"]: step["metadata"] if step["source"] == "whitebox" else registered[step["trajectory_uid"]]
            for step in listed
        }

    def _listed(self, prompt_uid: str) -> list[dict[str, Any]]:
        query = {"prompt_uid": prompt_uid, "channel": self._name, "limit": PAGE}
        steps: list[dict[str, Any]] = []
        while True:
            page = self._client.call("GET", "/api/v1/steps", query=query, repeat=True)
            steps += page["steps"]
            if page["next_cursor"] is None:
                return steps
            query = {**query, "cursor": page["next_cursor"]}


class DataPool:
    """The actor, with the methods of Claw-R1's ``DataPool``.

    Args:
        config: Claw-R1's ``DataPoolConfig``, of which ``n_rollouts`` is read.
        training_backend: ``convert(steps)`` makes the batch, as Claw-R1's ``VerlBackend``.
        max_queue_size: reported; no group is dropped.
    """

    def __init__(self, config: Any, training_backend: Any, max_queue_size: int | None = None) -> None:
        self._n_rollouts = int(config.n_rollouts)
        self._backend = training_backend
        self._max_queue_size = max_queue_size
        self._options = Options.of(os.environ)
        self._since = None if self._options.earlier else time.time()
        self._client = StudioClient(self._options.url, api_key=self._options.api_key)
        self._rows = Rows(self._client, self._since)
        self._channels: dict[str, Channel] = {}
        self._all_ended = False
        self._ended: dict[str, threading.Event] = {}
        self._validations: list[Any] = []
        # One thread for what is written: the order of calls is the order of groups.
        self._writing = ThreadPoolExecutor(1, "writing")
        self._reading = ThreadPoolExecutor(32, "reading")

    # Producers ----------------------------------------------------------------------------------------------------

    async def submit_step(self, step: Any, channel: str = TRAIN) -> None:
        """Store one step; returns when it is on disk."""
        await self.submit_steps([step], channel)

    async def submit_steps(self, steps: Sequence[Any], channel: str = TRAIN) -> None:
        """Store steps; returns when they are on disk.

        Raises:
            InvalidInput: a step has images or routed experts, which the pool can't give back.
        """
        body = {"steps": [_sent(step) for step in steps]}
        call = self._client.call
        await self._on(
            self._writing, lambda: call("POST", "/submit_steps", body, query={"channel": channel}, repeat=True)
        )

    async def complete_trajectory(self, trajectory_uid: str, reward: float | None = None, channel: str = TRAIN) -> bool:
        """Complete a trajectory with its total reward; False if it has no steps."""

        def complete() -> bool:
            body = {"reward": reward, "channel": channel}
            try:
                self._client.call("POST", f"/api/v1/trajectories/{trajectory_uid}/complete", body, repeat=True)
            except NotFound:
                return False
            return True

        return await self._on(self._writing, complete)

    # Trainers -----------------------------------------------------------------------------------------------------

    async def fetch_batch(self, batch_size: int, n_rollouts: int | None = None, channel: str = TRAIN) -> Any:
        """The next batch, as the training backend makes it; waits until enough groups are ready.

        None after ``shutdown`` with too few groups ready.
        """
        wanted = self._n_rollouts if n_rollouts is None else n_rollouts
        ended = self._end_of(channel)

        def fetch() -> Any:
            rows = self._channel(channel).fetch(batch_size, wanted, ended)
            if not rows:
                return None
            batch = self._backend.convert([step for step, _ in rows])
            for at, (_, mask) in enumerate(rows):
                if mask is not None:
                    batch.batch["response_mask"][at, : len(mask)] *= batch.batch["response_mask"].new_tensor(mask)
            return batch

        return await self._on(self._reading, fetch)

    async def shutdown(self, channel: str | None = None) -> None:
        """End the waiting for batches, in all channels if none is named; groups that are ready are still given."""
        if channel is not None:
            self._end_of(channel).set()
            return
        self._all_ended = True
        for ended in self._ended.values():
            ended.set()

    async def put_validate(self, data: Any) -> None:
        """Keep a validation's result for the trainer."""
        self._validations.append(data)

    async def get_validate(self) -> Any | None:
        """The oldest result of a validation, or None."""
        return self._validations.pop(0) if self._validations else None

    async def get_statistics(self, channel: str = TRAIN) -> dict[str, Any]:
        """Counts for the trainer's metrics: those of Claw-R1's pool, of the steps that this actor gives."""
        counts, given = await self._counts(channel)
        return {
            "total_steps": counts["n_steps"],
            "total_produced": counts["n_steps"],
            "total_consumed": given["n_groups"],
            "total_dropped": 0,
            "fetch_count": given["n_fetches"],
            "last_fetch": given["last"],
            "queue_size": counts["n_groups"] - given["n_groups"],
            "ready_prompt_groups": max(0, counts["n_ready"] - given["n_groups"]),
            "max_queue_size": self._max_queue_size,
            "shutdown": self._end_of(channel).is_set(),
            "curated_steps": counts["n_curated"],
            "event_cursor": counts["cursor"],
        }

    # The dashboard ------------------------------------------------------------------------------------------------

    async def stats(self, channel: str = TRAIN) -> dict[str, Any]:
        """Counts of a channel."""
        counts, given = await self._counts(channel)
        return {
            "total_steps": counts["n_steps"],
            "total_trajectories": counts["n_trajectories"],
            "complete_trajectories": counts["n_complete"],
            "total_prompt_groups": counts["n_groups"],
            "consumed_prompt_groups": given["n_groups"],
            "fetch_count": given["n_fetches"],
            "last_fetch": given["last"],
            "pending_prompt_groups": counts["n_groups"] - given["n_groups"],
            "ready_prompt_groups": max(0, counts["n_ready"] - given["n_groups"]),
            "curated_steps": counts["n_curated"],
            "event_cursor": counts["cursor"],
        }

    async def list_steps(self, channel: str = TRAIN, **wanted: Any) -> dict[str, Any]:
        """Steps with their labels: ``{channel, total, steps}``; arguments as ``Rows.steps``."""
        return await self._on(self._reading, lambda: self._rows.steps(channel, **wanted))

    async def list_trajectories(self, channel: str = TRAIN, **wanted: Any) -> dict[str, Any]:
        """Trajectories: ``{channel, total, trajectories}``; arguments as ``Rows.trajectories``."""
        return await self._on(self._reading, lambda: self._rows.trajectories(channel, **wanted))

    async def get_step_events(self, channel: str = TRAIN, *, cursor: int = 0, limit: int = 200) -> dict[str, Any]:
        """Steps after a cursor, in the order of their arrival: ``{channel, cursor, events, has_more}``."""
        return await self._on(self._reading, lambda: self._rows.events(channel, cursor, limit))

    async def update_step_curation(self, updates: Sequence[Mapping[str, Any]], channel: str = TRAIN) -> dict[str, Any]:
        """Label steps: ``{channel, updated, updated_count}``. Labels count in the studio and in later batches."""
        return await self._on(self._writing, lambda: self._rows.curate(channel, updates))

    async def _counts(self, channel: str) -> tuple[dict[str, int], dict[str, Any]]:
        counts = await self._on(self._reading, lambda: self._rows.counts(channel, self._n_rollouts))
        used = self._channels.get(channel)
        return counts, {
            "n_groups": 0 if used is None else used.n_groups,
            "n_fetches": 0 if used is None else used.n_fetches,
            "last": None if used is None else used.last,
        }

    def _end_of(self, channel: str) -> threading.Event:
        if channel not in self._ended:
            self._ended[channel] = threading.Event()
            if self._all_ended:
                self._ended[channel].set()
        return self._ended[channel]

    def _channel(self, name: str) -> Channel:
        if name not in self._channels:
            prompt, response = (getattr(self._backend, f"_{what}_length", None) for what in ("prompt", "response"))
            limits = {"token_budget": LONGEST} if prompt is None or response is None else _limits(prompt, response)
            self._channels[name] = Channel(self._client, self._options, name, self._since, limits)
        return self._channels[name]

    async def _on(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, work)


def _limits(prompt_length: int, response_length: int) -> dict[str, int]:
    """Recipe fields that leave out what the backend can't pad: a longer step would end the training."""
    return {
        "max_prompt_tokens": prompt_length,
        "max_response_tokens": response_length,
        "token_budget": prompt_length + response_length,
    }


def _sent(step: Any) -> dict[str, Any]:
    """A step of Claw-R1 as ``POST /submit_steps`` takes it, with a uid of its own: it may be sent twice."""
    for name in ("multi_modal_data", "routed_experts"):
        if getattr(step, name, None) is not None:
            raise InvalidInput(
                f"step {step.step_index} of {step.trajectory_uid} has {name}, which the pool can't give back",
                field=name,
                hint="train such models with Claw-R1's own data pool",
            )
    fields = ("prompt_ids", "response_ids", "reward", "rollout_log_probs", "trajectory_uid", "prompt_uid")
    return {
        **{name: getattr(step, name) for name in fields},
        "step_uid": new_uid(),
        "step_index": step.step_index,
        "policy_version": step.policy_version,
        "is_last": step.is_last,
        "metadata": step.metadata or {},
    }
