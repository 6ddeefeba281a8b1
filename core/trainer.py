"""HTTP client for trainers: fetches the next batches while the current one is trained on.

    with Trainer("http://127.0.0.1:8100", consumer="trainer-1") as trainer:
        for batch in trainer.batches():
            loss = update(batch.steps)
            batch.ack(update=batch.number, metrics={"loss": loss})

Leases are renewed while a batch is held. Each fetch has a request id: if the response is lost, the retry gets the same
batch. Batches that were prefetched and not used are released. Only the standard library is needed, except for batches
that are too large for JSON: they need pyarrow.
"""

from __future__ import annotations

import contextlib
import io
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from core.client import StudioClient, new_uid
from core.errors import Conflict, StudioError
from core.rollout import known

WAIT_S = 30.0
"""Duration of one long poll, seconds. Longer waits repeat it, so that a lost connection is noticed."""


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
        inline: read the steps. If false, ``steps`` is empty, and the batch can be read from ``head["file"]`` in any
            export format.
        **wanted: fields of ``POST batches/fetch``: recipe, recipe_name, recipe_version, channel, view, view_name,
            shared, partial. Without a recipe, each fetch uses the channel's active one.
    """

    def __init__(
        self,
        studio: str | StudioClient,
        consumer: str,
        *,
        lease_s: float = 1800.0,
        inline: bool = True,
        **wanted: Any,
    ) -> None:
        self.client = StudioClient(studio) if isinstance(studio, str) else studio
        self.consumer = consumer
        self.lost: list[str] = []
        self._lease_s = lease_s
        self._inline = inline
        self._wanted = wanted
        self._number = 0
        self._held: dict[str, Batch] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._keeper: threading.Thread | None = None

    def fetch(self, wait_s: float = 0.0) -> Batch | None:
        """Fetch one batch; None if none is ready within ``wait_s``."""
        body = {
            **self._wanted,
            "consumer": self.consumer,
            "lease_s": self._lease_s,
            "request_id": new_uid(),
            "wait_s": wait_s,
            "format": "json" if self._inline else "file",
        }
        head = self.client.call("POST", "/api/v1/batches/fetch", body, repeat=True)
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
