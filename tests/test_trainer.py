"""The trainers' client against a real service: prefetch, renewal, retries, and what is given back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.client import StudioClient
from core.errors import Conflict, InvalidInput
from core.trainer import Trainer
from tests.api.test_batches import RECIPE, produce
from tests.conftest import ServeProcess, eventually


@pytest.fixture
def studio(tmp_path: Path) -> Iterator[ServeProcess]:
    process = ServeProcess(tmp_path / "data", "http://127.0.0.1:9/v1")
    yield process
    assert process.stop() == 0


def states(studio: ServeProcess) -> list[tuple[str, int | None]]:
    batches = studio.http.get("/api/v1/batches").json()["batches"]
    return [(one["state"], one["update_index"]) for one in reversed(batches)]


def test_batches_arrive_ahead_and_what_is_not_used_goes_back(studio: ServeProcess) -> None:
    produce(studio, [f"g{k}" for k in range(5)])
    with Trainer(studio.base_url, "a", recipe=RECIPE) as trainer:
        seen = []
        for batch in trainer.batches(patience_s=30):
            eventually(lambda n=batch.number: len(states(studio)) > n + 1)
            seen += [group["prompt_uid"] for group in batch.groups]
            assert {step["prompt_uid"] for step in batch.steps} == {seen[-1]}
            batch.ack(
                update=batch.number, metrics={"loss": 1.0}, step_metrics={batch.steps[0]["step_uid"]: {"kl": 0.5}}
            )
            if batch.number == 2:
                break
        assert seen == ["g0", "g1", "g2"]
    assert states(studio) == [("acked", 0), ("acked", 1), ("acked", 2), ("released", None)]
    uid = studio.http.get("/api/v1/batches").json()["batches"][-1]["batch_uid"]
    held = studio.http.get(f"/api/v1/batches/{uid}").json()
    assert [(m["name"], m["value"]) for m in held["metrics"]] == [("loss", 1.0)]


def test_the_stream_ends_when_patience_does(studio: ServeProcess) -> None:
    produce(studio, ["A", "B"])
    with Trainer(studio.base_url, "a", recipe=RECIPE) as trainer:
        names = []
        for batch in trainer.batches(patience_s=0.5):
            names.append(batch.groups[0]["prompt_uid"])
            batch.ack()
    assert names == ["A", "B"]


def test_a_held_batch_is_renewed_and_a_forgotten_one_is_lost(studio: ServeProcess) -> None:
    produce(studio, ["A"])
    with Trainer(studio.base_url, "a", recipe=RECIPE, lease_s=2.5) as trainer:
        batch = trainer.fetch()
        assert batch is not None and trainer.fetch() is None
        time.sleep(4)
        assert StudioClient(studio.base_url).call("GET", f"/api/v1/batches/{batch.uid}")["state"] == "leased"
    with Trainer(studio.base_url, "b", recipe=RECIPE) as other:
        again = other.fetch(wait_s=30)
        assert again is not None and again.groups[0]["prompt_uid"] == "A"
        with pytest.raises(Conflict, match="handed out again"):
            batch.ack()


def test_errors_are_the_services(studio: ServeProcess) -> None:
    with Trainer(studio.base_url, "a", recipe={"algorithm": "grop"}) as trainer:
        with pytest.raises(InvalidInput) as caught:
            next(trainer.batches())
        assert caught.value.field == "recipe.algorithm"
