"""The ``data_pool`` actor: its batches beside those of Claw-R1's own, and beside a plain account of the steps.

Beside Claw-R1's it runs where ``CLAW_UPSTREAM`` has Claw-R1 (see ``test_upstream.py``), in verl's environment.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.serving.tokenizer import ASSETS
from tests.clawr1.test_upstream import checkout, needs_upstream
from tests.cluster.installed import ROOT, ray_python
from tests.conftest import ServeProcess
from tests.trainers.running import verl_python

pytestmark = pytest.mark.trainers
__all__ = ["checkout"]

Orders = list[tuple[str, dict[str, Any]]]


def rollouts(seed: int, channel: str, n_groups: int, n_rollouts: int) -> list[list[dict[str, Any]]]:
    """Trajectories of groups, as lists of steps; what a trajectory says of itself differs in every way."""
    draw = random.Random(seed)
    trajectories = []
    for group in range(n_groups):
        for number in range(n_rollouts):
            uid = f"{channel}-{seed}-{draw.randrange(10**6):06d}-{group}-{number}"
            context = [draw.randrange(100, 5000) for _ in range(draw.randint(1, 5))]
            n_steps = draw.randint(1, 4)
            way = draw.choice(["last", "each", "none"]) if group else "last"
            steps = []
            for index in range(n_steps):
                sampled = [draw.randrange(100, 5000) for _ in range(draw.randint(1, 3))]
                is_last = index == n_steps - 1
                scored = way == "each" or (way == "last" and is_last)
                steps.append(
                    {
                        "prompt_ids": list(context),
                        "response_ids": sampled,
                        "reward": round(draw.uniform(-1, 1), 3) if scored else None,
                        "rollout_log_probs": [round(draw.uniform(-3, 0), 3) for _ in sampled],
                        "trajectory_uid": uid,
                        "prompt_uid": f"{channel}-{seed}-p{group}",
                        "step_index": index,
                        "policy_version": draw.randint(0, 3),
                        "is_last": is_last,
                        "metadata": draw.choice(
                            [
                                None,
                                {"data_source": "gsm8k", "reward_model": {"ground_truth": "72", "style": "rule"}},
                                {"data_source": "other", "extra_info": {"index": group}, "uid": uid},
                            ]
                        ),
                    }
                )
                context += [*sampled, *(draw.randrange(100, 5000) for _ in range(draw.randint(0, 2)))]
            trajectories.append(steps)
    return trajectories


def interleaved(trajectories: Sequence[list[dict[str, Any]]], seed: int) -> list[dict[str, Any]]:
    """All steps in some order that keeps each trajectory's own."""
    draw, left = random.Random(seed), [list(one) for one in trajectories]
    steps = []
    while left := [one for one in left if one]:
        steps.append(draw.choice(left[:4]).pop(0))
    return steps


def orders_of(seed: int) -> tuple[Orders, dict[str, list[dict[str, Any]]]]:
    """Steps of both channels, fetches that wait and that need not, and an end with groups that are ready in both."""
    submitted = {
        "train": interleaved(rollouts(seed, "train", 5, 3), seed),
        "val": interleaved(rollouts(seed, "val", 3, 2), seed),
    }
    first, rest = submitted["train"][:2], submitted["train"][2:]
    orders: Orders = [("submit_steps", {"steps": first}), ("begin", {"batch_size": 2})]
    orders += [("submit_steps", {"steps": [step]}) for step in rest]
    orders += [("submit_steps", {"steps": [step], "channel": "val"}) for step in submitted["val"]]
    labelled = submitted["val"][0]
    label = {"quality": "correct", "trainable": True, "tags": ["seen"], "note": "right"}
    named = {"trajectory_uid": labelled["trajectory_uid"], "step_index": labelled["step_index"]}
    val = {"channel": "val"}
    orders += [
        ("end", {}),
        ("stats", val),
        ("list_steps", val),
        ("list_steps", {**val, "trajectory_uid": labelled["trajectory_uid"], "limit": 1, "offset": 1}),
        ("list_steps", {**val, "reward_state": "present", "min_reward": 0.0, "quality": "correct"}),
        ("list_steps", {**val, "policy_version": 1, "trainable": True}),
        ("list_trajectories", val),
        ("list_trajectories", {**val, "prompt_uid": labelled["prompt_uid"], "limit": 1}),
        ("get_step_events", {**val, "limit": 3}),
        ("update_step_curation", {**val, "updates": [{**named, **label}, {**named, "step_index": 99, **label}]}),
        ("list_steps", {**val, "quality": "correct"}),
        ("complete_trajectory", {**val, "trajectory_uid": "nobody"}),
        ("put_validate", {"data": [1]}),
        ("put_validate", {"data": [2]}),
        ("get_validate", {}),
        ("get_validate", {}),
        ("get_validate", {}),
        ("fetch_batch", {"batch_size": 2, "n_rollouts": 2, "channel": "val"}),
        ("get_statistics", val),
        # It asks for more groups than there are, and is waiting when the pool is shut down.
        ("begin", {"batch_size": 4}),
        ("shutdown", {}),
        ("end", {}),
        ("fetch_batch", {"batch_size": 2}),
        ("fetch_batch", {"batch_size": 2}),
        ("fetch_batch", {"batch_size": 1}),
        ("fetch_batch", {"batch_size": 1}),
        ("fetch_batch", {"batch_size": 1, "n_rollouts": 2, "channel": "val"}),
        ("fetch_batch", {"batch_size": 1, "n_rollouts": 2, "channel": "val"}),
    ]
    return orders, submitted


def fetched(mode: str, python: Path, orders: Orders, url: str, folder: Path, *paths: Path) -> list[Any]:
    """The results of all orders, in a Ray of its own."""
    (folder / "orders.json").write_text(json.dumps(orders))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT))),
        "CLAW_DATA_POOL_URL": url,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "OMP_NUM_THREADS": "1",
    }
    results = folder / f"{mode}.pickle"
    program = Path(__file__).with_name("in_ray.py")
    done = subprocess.run(
        [python, program, mode, folder / "orders.json", results, ASSETS],
        capture_output=True, text=True, timeout=280, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    answers: list[Any] = pickle.loads(results.read_bytes())
    return answers


NUMBERS = {"storage_index", "cursor", "event_cursor", "fetched_at"}
"""Numbers of the actor's own, and times."""
FLEETING = {"total_steps"}
"""Claw-R1's pool forgets the steps that it has given."""


def same(one: Any, other: Any, path: str) -> None:
    """Names in their order, dtypes, shapes and values."""
    assert type(one) is type(other), path
    if path.endswith(".curation"):
        # Claw-R1's has the note, and where it answers an update nothing but what was set.
        for name in one.keys() - {"note"}:
            assert one[name] == other[name], f"{path}.{name}"
    elif isinstance(one, dict):
        assert list(one) == list(other), path
        for name in one.keys() - NUMBERS - (FLEETING if "queue_size" in one else set()):
            same(one[name], other[name], f"{path}.{name}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for at, (mine, theirs) in enumerate(zip(one, other, strict=True)):
            same(mine, theirs, f"{path}[{at}]")
    elif isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape), path
        assert one.tolist() == other.tolist(), path
    else:
        assert one == other, path


@needs_upstream
def test_batches_are_those_of_claw_r1s_own_pool(service: ServeProcess, checkout: Path, tmp_path: Path) -> None:
    python = Path(verl_python())
    orders, _ = orders_of(7)

    def batches() -> dict[str, str]:
        listed = service.http.get("/api/v1/batches").json()["batches"]
        return {one["batch_uid"]: one["state"] for one in listed if one["consumer"] == "claw-r1"}

    before = batches()
    own = fetched("own", python, orders, service.base_url, tmp_path, checkout)
    assert batches() == before
    ours = fetched("hooked", python, orders, service.base_url, tmp_path, checkout)
    # After `shutdown`: it, the fetch that waited, the train channel's groups, the val channel's.
    assert [one is None for one in own[-8:]] == [True, True, False, True, False, True, False, True]
    for at, (method, arguments) in enumerate(orders):
        same(own[at], ours[at], f"{at} {method} {arguments if 'steps' not in arguments else ''}")
    made = [state for uid, state in batches().items() if uid not in before]
    assert made == ["acked"] * 5, "each channel was asked once more"


def expected(steps: Sequence[dict[str, Any]], n_groups: slice) -> list[dict[str, Any]]:
    """The steps of these groups, by first come, first served, as a plain account of what was submitted."""
    order = list(dict.fromkeys(step["prompt_uid"] for step in steps))
    rows = []
    for uid in order[n_groups]:
        own = [step for step in steps if step["prompt_uid"] == uid]
        rows += sorted(own, key=lambda step: (step["trajectory_uid"], step["step_index"]))
    scored = {step["trajectory_uid"] for step in rows if step["reward"] is not None}
    empty = {"multi_modal_data": None, "routed_experts": None}
    return [
        # In a scored trajectory a step without a reward has earned nothing.
        {**empty, **step, "reward": (step["reward"] or 0.0) if step["trajectory_uid"] in scored else None}
        for step in rows
    ]


def as_submitted(step: dict[str, Any]) -> dict[str, Any]:
    """A step with log-probs as the pool has them, float32, and rewards to the rounding of sums."""
    scores = np.float32(step["rollout_log_probs"]).tolist()
    return {**step, "rollout_log_probs": scores, "reward": step["reward"] and round(step["reward"], 9)}


def test_steps_come_back_as_submitted_through_the_hook(service: ServeProcess, tmp_path: Path) -> None:
    """In Ray's environment, where a package with Claw-R1's names stands for it: the hook must replace its class."""
    package = tmp_path / "claw_r1" / "data_pool"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "data_pool.py").write_text("DataPool = None\n")
    (package / "__init__.py").write_text("from claw_r1.data_pool.data_pool import DataPool\n")
    orders, submitted = orders_of(11)
    begun, *_, val, _, waiting, _, waited, second, none, last, nothing, val_last, val_nothing = (
        result
        for (method, _), result in zip(
            orders, fetched("recorded", ray_python(), orders, service.base_url, tmp_path, tmp_path), strict=True
        )
        if method in ("begin", "end", "fetch_batch", "get_statistics", "shutdown")
    )
    assert (begun, waiting) == (True, True), "a fetch waits until groups are ready"
    got = {"train": [*second, *last], "val": [*val, *val_last]}
    want = {"train": expected(submitted["train"], slice(2, 5)), "val": expected(submitted["val"], slice(0, 3))}
    for channel, steps in got.items():
        assert list(map(as_submitted, steps)) == list(map(as_submitted, want[channel])), channel
    assert (waited, none, nothing, val_nothing) == (None,) * 4
