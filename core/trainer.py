"""HTTP client for trainers: fetches the next batches while the current one is trained on.

    with Trainer("http://127.0.0.1:8100", consumer="trainer-1", channel="train") as trainer:
        for batch in trainer.batches():
            rows = batch.rows()
            loss, recomputed = update(rows)
            comparison = batch.compare(rows, recomputed, version)  # refuses log-probs of other weights
            batch.ack(update=batch.number, metrics={"loss": loss, **comparison.metrics()})
            version += 1
            trainer.sync_weights(save(version), version)

``batches`` fetches ahead. A recipe with ``max_staleness: 0`` needs ``fetch`` after each ``sync_weights`` instead, since
a batch that was fetched before is stale then. Leases are renewed while a batch is held. Each fetch has a request id: if
the response is lost, the retry gets the same batch. Batches that were prefetched and not used are released. Only the
standard library is needed, except for batches that are too large for JSON: they need pyarrow.
"""

from __future__ import annotations

import contextlib
import io
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from core.client import StudioClient, new_uid
from core.errors import Conflict, StudioError
from core.rollout import known
from core.trainer_rows import Comparison, Guard, LogprobsDiffer, TrainingRow, compare, training_rows

__all__ = ["Batch", "Comparison", "Guard", "LogprobsDiffer", "Trainer", "TrainingRow", "compare", "training_rows"]

WAIT_S = 30.0
"""Duration of one long poll, seconds. Longer waits repeat it, so that a lost connection is noticed."""


DEFAULT_GUARD = Guard()
SYNC_TIMEOUT_S = 900.0
"""Longest wait for the response of a weight sync without a timeout of its own, seconds."""


@dataclass(slots=True)
class Batch:
    """A leased batch.

    Attributes:
        uid: its uid.
        number: sequence number in this client, from 0.
        steps: one dict per step in plan order: ``step_uid, trajectory_uid, prompt_uid, group, trajectory, step_index,
            prompt_ids, response_ids, response_logprobs, reward, trajectory_reward, advantage, return,
            token_advantages, token_returns, policy_version, token_source``; unknown is None. ``response_mask`` is 0 on
            sampled tokens that must not be in a loss, such as redacted ones; None means all may be.
        head: the other fields of the response: recipe and its version, view, totals, level, reasons for exclusion.
    """

    uid: str
    number: int
    steps: list[dict[str, Any]]
    head: dict[str, Any]
    _trainer: Trainer = field(repr=False)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Prompt groups with their trajectories and step uids."""
        groups: list[dict[str, Any]] = self.head["groups"]
        return groups

    def rows(self, *, merge: bool = True) -> list[TrainingRow]:
        """The batch as training rows; steps of a trajectory are joined where they extend, see ``core.trainer_rows``."""
        return training_rows(self.steps, merge=merge)

    def compare(
        self, rows: Sequence[TrainingRow], recomputed: Sequence[Sequence[float]], version: int | None
    ) -> Comparison:
        """Compare captured with recomputed log-probs, and call the trainer's guard with the result.

        Args:
            rows: of ``rows``.
            recomputed: for each row one log-prob per token, nats.
            version: of the weights that recomputed.

        Raises:
            LogprobsDiffer: the guard refused the batch. It is released with this reason.
        """
        comparison = compare(rows, recomputed, version)
        if (guard := self._trainer.guard) is not None:
            try:
                guard(comparison)
            except StudioError as refusal:
                self.release(refusal.message)
                raise
        return comparison

    def ack(
        self,
        *,
        update: int | None = None,
        metrics: Mapping[str, float | None] | None = None,
        step_metrics: Mapping[str, Mapping[str, float | None]] | None = None,
    ) -> None:
        """Report that the batch was used in an update. ``step_metrics`` are keyed by step uid.

        Raises:
            Conflict: the lease has expired.
        """
        self._trainer.finish_batch(self, "ack", {**known(update=update), **_measured(metrics, step_metrics)})

    def release(self, reason: str | None = None) -> None:
        """Release the batch, so that its groups can be fetched again."""
        self._trainer.finish_batch(self, "release", known(reason=reason))

    def measure(
        self,
        *,
        update: int | None = None,
        metrics: Mapping[str, float | None] | None = None,
        step_metrics: Mapping[str, Mapping[str, float | None]] | None = None,
    ) -> None:
        """Post metrics; the lease is not changed."""
        path = f"/api/v1/batches/{self.uid}/metrics"
        self._trainer.client.call("POST", path, {**known(update=update), **_measured(metrics, step_metrics)})


class Trainer:
    """A named consumer of batches.

    Args:
        studio: base URL of the service, or a client.
        consumer: name of this consumer. Consumers with different names never get the same group.
        lease_s: time after which a lease expires unless it is renewed, seconds.
        guard: called with each batch's comparison of captured and recomputed log-probs; raises StudioError to refuse
            the batch. None: no batch is refused.
        inline: read the steps. If false, ``steps`` is empty, and the batch can be read from ``head["file"]`` in any
            export format.
        **wanted: fields of ``POST batches/fetch``: recipe, recipe_name, recipe_version, channel, view, view_name,
            dataset, shared, partial. Without a recipe, each fetch uses the channel's active one; with one, ``channel``
            is the channel of its steps.

    Attributes:
        missing: why the last fetch gave no batch; None if it gave one.
        lost: uids of batches whose lease has expired while they were held.
    """

    def __init__(
        self,
        studio: str | StudioClient,
        consumer: str,
        *,
        lease_s: float = 1800.0,
        guard: Callable[[Comparison], None] | None = DEFAULT_GUARD,
        inline: bool = True,
        **wanted: Any,
    ) -> None:
        self.client = StudioClient(studio) if isinstance(studio, str) else studio
        self.consumer = consumer
        self.guard = guard
        self.missing: str | None = None
        self.lost: list[str] = []
        self._lease_s = lease_s
        self._inline = inline
        self._wanted = wanted
        self._number = 0
        self._held: dict[str, Batch] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._keeper: threading.Thread | None = None

    def fetch(self, wait_s: float = 0.0, **wanted: Any) -> Batch | None:
        """Fetch one batch; None if none is ready within ``wait_s`` seconds. ``wanted`` as for the constructor."""
        body = {
            **self._wanted,
            **wanted,
            "consumer": self.consumer,
            "lease_s": self._lease_s,
            "request_id": new_uid(),
            "wait_s": wait_s,
            "format": "json" if self._inline else "file",
        }
        head = self.client.call("POST", "/api/v1/batches/fetch", body, repeat=True)
        self.missing = head["missing"]
        if head["batch_uid"] is None:
            return None
        steps = head.pop("steps")
        with self._lock:
            batch = Batch(head["batch_uid"], self._number, steps or [], head, self)
            self._number += 1
            # Renew it from now on: reading a large batch may take longer than its lease.
            self._held[batch.uid] = batch
            if self._keeper is None:
                self._keeper = threading.Thread(target=self._keep, name="leases", daemon=True)
                self._keeper.start()
        if steps is None and self._inline:
            batch.steps = self._big(head["file"])
        return batch

    def batches(self, *, prefetch: int = 1, patience_s: float | None = None) -> Iterator[Batch]:
        """Iterate over batches as they become ready; the next ones are fetched in the background.

        Args:
            prefetch: how many to hold besides the one in use.
            patience_s: stop after waiting this long for a batch; None waits without limit.

        Raises:
            StudioError: a fetch failed.
        """
        ahead: queue.Queue[Batch | StudioError | None] = queue.Queue()
        room = threading.Semaphore(max(1, prefetch))
        ended = threading.Event()

        def fetch_ahead() -> None:
            while room.acquire() and not ended.is_set() and not self._stop.is_set():
                got = self._wait_for_batch(patience_s, ended)
                ahead.put(got)
                if not isinstance(got, Batch):
                    return

        thread = threading.Thread(target=fetch_ahead, name="prefetch", daemon=True)
        thread.start()
        try:
            while True:
                got = ahead.get()
                if isinstance(got, StudioError):
                    raise got
                if got is None:
                    return
                room.release()
                yield got
        finally:
            ended.set()
            room.release()
            thread.join(WAIT_S + 10)
            while not ahead.empty():
                item = ahead.get()
                if isinstance(item, Batch):
                    self._give_back(item)

    def finish_batch(self, batch: Batch, word: str, body: Mapping[str, Any]) -> None:
        """``ack`` or ``release`` a batch of this consumer."""
        path = f"/api/v1/batches/{quote(batch.uid, safe='')}/{word}"
        with self._lock:
            self._held.pop(batch.uid, None)
        self.client.call("POST", path, {"consumer": self.consumer, **body}, repeat=True)

    def settle(self, batch_uid: str, *, update: int | None = None) -> bool:
        """Acknowledge a batch that an earlier process of this consumer has trained on. It may be repeated.

        Returns:
            False if the lease has expired and the groups were leased again, so that they are trained on twice.
        """
        path = f"/api/v1/batches/{quote(batch_uid, safe='')}/ack"
        try:
            self.client.call("POST", path, {"consumer": self.consumer, **known(update=update)}, repeat=True)
        except Conflict:
            return False
        return True

    def reclaim(self) -> list[str]:
        """Release the batches that an earlier process of this consumer left leased; returns their uids.

        For consumers with one process: it also releases what another process of the same name holds.
        """
        query = {"channel": self._wanted["channel"]} if self._wanted.get("channel") else None
        batches = self.client.call("GET", "/api/v1/batches", query=query, repeat=True)["batches"]
        left = [b["batch_uid"] for b in batches if b["state"] == "leased" and b["consumer"] == self.consumer]
        for uid in left:
            path = f"/api/v1/batches/{quote(uid, safe='')}/release"
            body = {"consumer": self.consumer, "reason": "its trainer was started again"}
            with contextlib.suppress(Conflict):
                self.client.call("POST", path, body, repeat=True)
        return left

    @property
    def version(self) -> int | None:
        """The policy version in force; None if none was reported."""
        version: int | None = self.client.policy_state()["version"]
        return version

    def sync_weights(
        self, folder: str | Path, version: int, *, engines: Sequence[str] | None = None, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """Have the studio's engines load new weights, and put the version in force.

        The studio holds new calls back, waits for those in flight, has each engine load the folder, checks that each
        answers with the version, and stamps the version on all calls from then on. It may be repeated.

        Args:
            folder: weights as a transformers folder, at a path that the engines can read.
            version: counter of these weights, at least 0.
            engines: names of the engines; None: the default engine, its replicas, and engines with a weights hook.
            timeout_s: longest time for all of it, seconds; None: the studio's ``policy_sync_timeout_s``.

        Returns:
            ``{version, seconds, engines: [{name, seconds, checked}]}``.

        Raises:
            EngineError: an engine did not load them; the message names it. The version before stays in force.
            InvalidInput: the folder or version is refused.
        """
        body = {"path": str(Path(folder).absolute()), "version": version, **known(engines=engines, timeout_s=timeout_s)}
        # Not repeated on its own: after a lost response the caller sees from ``version`` whether it is in force.
        wait_s = SYNC_TIMEOUT_S if timeout_s is None else timeout_s + WAIT_S
        answer: dict[str, Any] = self.client.call("POST", "/api/v1/policy/sync", body, timeout_s=wait_s)
        return answer

    def close(self) -> None:
        """Stop renewing leases; those still held expire."""
        self._stop.set()
        if self._keeper is not None:
            self._keeper.join(10)
        self.client.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _give_back(self, batch: Batch) -> None:
        # An expired lease is already released.
        with contextlib.suppress(Conflict):
            batch.release("fetched ahead and not used")

    def _wait_for_batch(self, patience_s: float | None, ended: threading.Event) -> Batch | StudioError | None:
        waited = 0.0
        while not ended.is_set() and not self._stop.is_set():
            now = WAIT_S if patience_s is None else min(WAIT_S, patience_s - waited)
            try:
                got = self.fetch(now)
            except StudioError as error:
                return error
            waited += now
            if got is not None:
                if ended.is_set():
                    self._give_back(got)
                    return None
                return got
            if patience_s is not None and waited >= patience_s:
                return None
        return None

    def _keep(self) -> None:
        """Renew the held leases well before they expire; batches whose lease has expired are added to ``lost``."""
        while not self._stop.wait(self._lease_s / 3):
            with self._lock:
                held = list(self._held)
            for uid in held:
                path = f"/api/v1/batches/{quote(uid, safe='')}/renew"
                body = {"consumer": self.consumer, "lease_s": self._lease_s}
                try:
                    self.client.call("POST", path, body, repeat=True)
                except Conflict:
                    with self._lock:
                        if self._held.pop(uid, None) is not None:
                            self.lost.append(uid)
                except StudioError:
                    # The service does not respond. The next round tries again; an expired lease fails at ``ack``.
                    continue

    def _big(self, file: str) -> list[dict[str, Any]]:
        import pyarrow as pa

        with pa.ipc.open_stream(io.BytesIO(self.client.download(file))) as stream:
            steps: list[dict[str, Any]] = stream.read_all().to_pylist()
        return steps


def _measured(
    metrics: Mapping[str, float | None] | None, step_metrics: Mapping[str, Mapping[str, float | None]] | None
) -> dict[str, Any]:
    steps: Sequence[dict[str, Any]] = [
        {"step_uid": uid, "metrics": dict(values)} for uid, values in (step_metrics or {}).items()
    ]
    return {"metrics": dict(metrics or {}), "steps": steps}
