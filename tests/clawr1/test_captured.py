"""What the ``data_pool`` actor gives of calls that the gateway captured; the class without Ray."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest

from core.cluster.data_pool import DataPool, Options, Step
from core.errors import InvalidInput
from tests.clawr1.conftest import FIELDS, QUESTION
from tests.clawr1.test_wire import only_trajectory
from tests.conftest import ServeProcess


class Recorder:
    """A training backend that keeps the steps as they are."""

    _prompt_length, _response_length = 4096, 1024

    def convert(self, steps: list[Any]) -> list[dict[str, Any]]:
        return [asdict(step) for step in steps]


def pool_of(service: ServeProcess, monkeypatch: pytest.MonkeyPatch, **variables: str) -> DataPool:
    for name, value in {"CLAW_DATA_POOL_URL": service.base_url, **variables}.items():
        monkeypatch.setenv(name, value)
    return DataPool(SimpleNamespace(n_rollouts=1), Recorder())


def talk(service: ServeProcess, prompt_uid: str, *, reward: float | None, channel: str = "train") -> str:
    """An agent's attempt of two calls, as Claw-R1's agents make it; its trajectory."""
    uid = service.http.post("/init_trajectory").json()["trajectory_uid"]
    base = f"{service.base_url}/{uid}/{prompt_uid}/v1"
    metadata = {"data_source": FIELDS["data_source"], "reward_model": FIELDS["reward_model"], "uid": prompt_uid}
    body = {"channel": channel, "metadata": metadata}
    registered = service.http.post(f"{base}/register_trajectory", json=body)
    assert registered.status_code == 200, registered.text
    client = openai.OpenAI(base_url=base, api_key="not-needed", timeout=60)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        answer = client.chat.completions.create(model="default", messages=messages)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        messages.append({"role": "user", "content": "Once more, please."})
    assert service.http.post(f"{base}/complete_trajectory", json={"reward": reward}).json()["status"] == "ok"
    return uid


def test_captured_calls_are_given_as_the_engine_sampled_them(
    service: ServeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of(service, monkeypatch)
    talk(service, "captured-1", reward=0.75)
    talk(service, "captured-2", reward=None)

    async def fetch() -> list[Any]:
        both = await pool.fetch_batch(2)
        await pool.shutdown()
        return [*both, await pool.fetch_batch(1)]

    *steps, nothing = asyncio.run(fetch())
    assert nothing is None and len(steps) == 4
    for at, name in ((0, "captured-1"), (2, "captured-2")):
        stored = only_trajectory(service, name)["steps"]
        for got, kept in zip(steps[at : at + 2], stored, strict=True):
            assert got["prompt_ids"] == kept["prompt_ids"] and got["response_ids"] == kept["response_ids"]
            assert np.array_equal(np.float32(got["rollout_log_probs"]), np.float32(kept["response_logprobs"]))
            assert got["step_index"] == kept["step_index"] and got["prompt_uid"] == name
            assert got["metadata"] == {**{key: FIELDS[key] for key in ("data_source", "reward_model")}, "uid": name}
    assert [step["reward"] for step in steps] == [0.0, 0.75, None, None]
    assert [step["is_last"] for step in steps] == [False, True, False, True]


def test_labels_recipes_and_restarts(service: ServeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was captured before the actor began is for a trainer that goes on; what is labelled bad is for none."""
    bad = talk(service, "labelled-bad", reward=1.0, channel="again")
    label = {"target": {"trajectory_uid": bad}, "kind": "quality", "value": "bad"}
    assert service.http.post("/api/v1/annotations", json={"annotations": [label]}).status_code == 200
    talk(service, "labelled-no", reward=0.5, channel="again")

    async def ready(pool: DataPool) -> Any:
        await pool.shutdown()
        return await pool.fetch_batch(1, channel="again")

    assert asyncio.run(ready(pool_of(service, monkeypatch))) is None
    goes_on = {"CLAW_DATA_POOL_EARLIER": "1", "CLAW_DATA_POOL_CONSUMER": "second"}
    first = asyncio.run(ready(pool_of(service, monkeypatch, **goes_on)))
    assert {step["prompt_uid"] for step in first} == {"labelled-no"}
    # It ended before the next fetch acknowledged the batch: the next process of that name gets it again.
    again = asyncio.run(ready(pool_of(service, monkeypatch, **goes_on)))
    assert again == first
    monkeypatch.setenv("CLAW_DATA_POOL_RECIPE", '{"max_response_tokens": 1}')
    assert asyncio.run(ready(pool_of(service, monkeypatch, **goes_on))) is None


def test_what_the_pool_can_not_give_back_is_refused(service: ServeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(service, monkeypatch)
    with pytest.raises(InvalidInput, match="routed_experts"):
        asyncio.run(pool.submit_step(Step([1], [2], routed_experts=[[0]], trajectory_uid="moe")))
    with pytest.raises(InvalidInput) as refused:
        Options.of({"CLAW_DATA_POOL_RECIPE": "grpo"})
    assert refused.value.field == "CLAW_DATA_POOL_RECIPE"
