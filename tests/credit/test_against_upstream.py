"""Our estimators beside the code that trainers run: StepPO's, Agent-R1's and verl's own functions on the same batch.

verl's are found in the environment that ``.ci/run`` makes for it, so they always run there. The others run where
``CLAW_UPSTREAM`` names a folder of git directories or checkouts: ``OWNER+NAME/repo`` (bare) or ``NAME``.
Only the functions under test are taken out of their files, so none of the packages (ray, tensordict, ...) is needed;
the code is theirs, unchanged.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections import defaultdict
from difflib import SequenceMatcher
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.credit import get
from tests.effort import settings
from tests.left_out import missing

from . import brute
from .batches import Groups, batch_of, groups

UPSTREAM = os.environ.get("CLAW_UPSTREAM")
VERL = Path(__file__).parents[2] / ".cache" / "trainers" / "verl"
SOURCES = {
    "verl": ("volcengine+verl", "verl/trainer/ppo/core_algos.py"),
    "verl_functional": ("volcengine+verl", "verl/utils/torch_functional.py"),
    "steppo": ("AgentR1+StepPO", "arft/core_algos.py"),
    "agent_r1": ("AgentR1+Agent-R1", "agent_r1/trainer/ppo/core_algos.py"),
}


def source(name: str) -> str:
    """The file's text; the test is left out where it is nowhere, but verl's must be there in CI."""
    repo, path = SOURCES[name]
    for packages in VERL.glob("lib/python*/site-packages"):
        if (packages / path).is_file():
            return (packages / path).read_text()
    if UPSTREAM is not None:
        for checkout in (Path(UPSTREAM) / repo, Path(UPSTREAM) / repo.split("+")[1]):
            if (checkout / path).is_file():
                return (checkout / path).read_text()
        git = Path(UPSTREAM) / repo / "repo"
        return subprocess.run(
            ["git", f"--git-dir={git}", "show", f"HEAD:{path}"], capture_output=True, text=True, check=True
        ).stdout
    if name.startswith("verl"):
        missing("verl is not installed, so its own code was not compared: .ci/run installs it into .cache/trainers")
    pytest.skip(f"CLAW_UPSTREAM names no folder with {repo}")


def functions(name: str, text: str, **names: Any) -> SimpleNamespace:
    """The file's plain functions that begin with what we test, without decorators, in a fresh namespace."""
    tree = ast.parse(text)
    wanted = ("compute_", "masked_", "_to_hashable", "_are_", "_trajectory_total", "_build_step", "_normalize_group")
    body = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith(wanted):
            node.decorator_list = []
            node.returns = None
            for argument in (*node.args.args, *node.args.kwonlyargs):
                argument.annotation = None
            body.append(node)
    space: dict[str, Any] = {
        "np": np, "defaultdict": defaultdict, "SequenceMatcher": SequenceMatcher, "Optional": Optional, "Any": Any,
        **names,
    }  # fmt: skip
    exec(compile(ast.Module(body, []), SOURCES[name][1], "exec"), space)
    return SimpleNamespace(**space)


class Theirs:
    """Their functions by trainer, read when a test first asks for them."""

    def __init__(self) -> None:
        import torch

        torch.set_num_threads(1)
        self.torch = torch
        self._found: dict[str, SimpleNamespace] = {}

    def __getitem__(self, name: str) -> Any:
        if name == "torch":
            return self.torch
        if name not in self._found:
            text = source(name)
            plain = functions("verl_functional", source("verl_functional"), torch=self.torch)
            self._found[name] = functions(name, text, torch=self.torch, verl_F=plain)
        return self._found[name]


@pytest.fixture(scope="module")
def theirs() -> Theirs:
    return Theirs()


def rows(data: Groups, torch: Any) -> dict[str, Any]:
    """The padded layout of one row per step: [s, longest], float64, reward on the last response token."""
    width = max(brute.counts(data))
    everyone = brute.everyone(data)
    rewards, values, mask = [], [], []
    index, owner, step_index, anchors = [], [], [], []
    group_of = [g for g, group in enumerate(data) for _ in group]
    for i, t in enumerate(everyone):
        for k, (s, r) in enumerate(zip(t.steps, t.rewards, strict=True)):
            n = len(s.token_values)
            rewards.append([0.0] * (n - 1) + [r] + [0.0] * (width - n))
            values.append([*s.token_values, *[0.0] * (width - n)])
            mask.append([1.0] * n + [0.0] * (width - n))
            index.append(group_of[i])
            owner.append(f"t{i:03d}")
            step_index.append(k)
            anchors.append(s.anchor)

    def tensor(x: Any) -> Any:
        return torch.tensor(x, dtype=torch.float64)

    return {
        "rewards": tensor(rewards), "values": tensor(values), "mask": tensor(mask), "index": np.array(index),
        "owner": np.array(owner, dtype=object), "step_index": np.array(step_index),
        "anchors": np.array(anchors, dtype=object),
    }  # fmt: skip


def tokens(matrix: Any, mask: Any) -> np.ndarray:
    """The real tokens' values, row by row."""
    return matrix[mask.bool()].numpy()


def ours(name: str, data: Groups, **options: Any) -> np.ndarray:
    """Our advantages per sampled token."""
    credit = get(name).advantages(options, batch_of(data))
    return credit.token if credit.token is not None else np.repeat(credit.step, brute.counts(data))


some = settings(max_examples=25, deadline=None)
factor = st.sampled_from([0.5, 0.95, 1.0])
CLOSE = {"abs": 2e-5}
"""Their means of equal numbers round; over an eps of 1e-6 that shows in the fifth digit."""


@pytest.mark.parametrize("who", ["steppo", "agent_r1"])
@given(data=groups, gamma=factor, lam=factor)
@some
def test_gae(theirs, who, data, gamma, lam):
    r = rows(data, theirs["torch"])
    shared = (r["rewards"], r["values"], r["mask"], r["owner"], r["step_index"], gamma, lam)
    for t in brute.everyone(data):
        for s in t.steps:
            s.value = s.token_values[0]
    if len(r["owner"]) > 1:
        expected, returns = theirs[who].compute_gae_advantage_return(*shared)
        assert ours("step_gae", data, gamma=gamma, lam=lam) == pytest.approx(tokens(expected, r["mask"]), abs=1e-6)
        mine = get("step_gae").advantages({"gamma": gamma, "lam": lam}, batch_of(data)).step_return
        assert np.repeat(mine, brute.counts(data)) == pytest.approx(tokens(returns, r["mask"]), abs=1e-9)
    if r["mask"].sum() > 1:
        expected, returns = theirs[who].compute_token_gae_advantage_return(*shared)
        assert ours("token_gae", data, gamma=gamma, lam=lam) == pytest.approx(tokens(expected, r["mask"]), abs=1e-6)


@pytest.mark.parametrize("who", ["steppo", "agent_r1"])
@given(data=groups, std=st.booleans())
@some
def test_grpo(theirs, who, data, std):
    r = rows(data, theirs["torch"])
    expected, _ = theirs[who].compute_grpo_outcome_advantage(
        r["rewards"], r["mask"], r["index"], r["owner"], norm_adv_by_std_in_grpo=std
    )
    assert ours("grpo" if std else "dr_grpo", data) == pytest.approx(tokens(expected, r["mask"]), **CLOSE)


@given(data=groups)
@some
def test_steppo_rloo_and_reinforce_plus_plus(theirs, data):
    r, theirs_ = rows(data, theirs["torch"]), theirs["steppo"]
    expected, _ = theirs_.compute_rloo_outcome_advantage(r["rewards"], r["mask"], r["index"], r["owner"])
    assert ours("rloo", data) == pytest.approx(tokens(expected, r["mask"]), **CLOSE)
    expected, _ = theirs_.compute_reinforce_plus_plus_baseline_outcome_advantage(
        r["rewards"], r["mask"], r["index"], r["owner"]
    )
    assert ours("reinforce_plus_plus_baseline", data) == pytest.approx(tokens(expected, r["mask"]), **CLOSE)
    for gamma in (0.9, 1.0):
        if r["mask"].sum() > 1:
            expected, _ = theirs_.compute_reinforce_plus_plus_outcome_advantage(r["rewards"], r["mask"], gamma)
            mine = ours("reinforce_plus_plus", data, gamma=gamma, chain="step")
            assert mine == pytest.approx(tokens(expected, r["mask"]), **CLOSE)


@given(
    data=groups,
    gamma=factor,
    mode=st.sampled_from(["mean_std_norm", "mean_norm"]),
    similarity=st.sampled_from([None, 0.5, 0.95]),
)
@some
def test_steppo_gigpo(theirs, data, gamma, mode, similarity):
    r, theirs_ = rows(data, theirs["torch"]), theirs["steppo"]
    returns = theirs_.compute_step_discounted_returns(r["rewards"], r["mask"], r["owner"], r["step_index"], gamma)
    expected, _ = theirs_.compute_gigpo_outcome_advantage(
        r["rewards"], returns, r["mask"], r["anchors"], r["index"], r["owner"],
        mode=mode, enable_similarity=similarity is not None, similarity_thresh=similarity or 0.95,
    )  # fmt: skip
    mine = ours("gigpo", data, gamma=gamma, mode=mode, similarity=similarity)
    assert mine == pytest.approx(tokens(expected, r["mask"]), **CLOSE)


@given(data=groups)
@some
def test_verl(theirs, data):
    """verl's rows are whole samples, so each trajectory has one step here."""
    single = [[type(t)([t.steps[0]], baseline=t.baseline) for t in group] for group in data]
    r, verl = rows(single, theirs["torch"]), theirs["verl"]
    mask, config = r["mask"], SimpleNamespace(gamma=0.9)
    baselines = theirs["torch"].tensor([t.baseline for t in brute.everyone(single)], dtype=theirs["torch"].float64)
    pairs = [
        ("grpo", verl.compute_grpo_outcome_advantage(r["rewards"].clone(), mask, r["index"]), {}),
        ("rloo", verl.compute_rloo_outcome_advantage(r["rewards"].clone(), mask, r["index"]), {}),
        ("remax", verl.compute_remax_outcome_advantage(r["rewards"].clone(), baselines, mask), {}),
    ]
    if mask.sum() > 1:
        pairs += [
            (
                "reinforce_plus_plus",
                verl.compute_reinforce_plus_plus_outcome_advantage(r["rewards"].clone(), mask, config=config),
                {"gamma": 0.9},
            ),
            (
                "reinforce_plus_plus_baseline",
                verl.compute_reinforce_plus_plus_baseline_outcome_advantage(r["rewards"].clone(), mask, r["index"]),
                {},
            ),
            (
                "token_gae",
                verl.compute_gae_advantage_return(r["rewards"].clone(), r["values"], mask, 0.9, 0.95),
                {"gamma": 0.9, "lam": 0.95},
            ),
        ]
    # verl's means divide by the count plus 1e-8; where all values are equal, whitening magnifies that by 1e4.
    biggest = 1 + float(r["rewards"].abs().sum(-1).max() + r["values"].abs().max())
    whitened = {**CLOSE, "abs": 1e-4 * biggest}
    for name, (expected, _), options in pairs:
        close = CLOSE if name in ("grpo", "rloo", "remax") else whitened
        assert ours(name, single, **options) == pytest.approx(tokens(expected, mask), **close), name
