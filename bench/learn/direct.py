"""A learning run in one process, without the studio: the demo's tasks, its policy, and the reference trainer's update.

For questions that need many seeds. Sampling, tokens, log-probs, GRPO, loss and optimiser are those of the product;
HTTP, storage, plans and leases are left out, and so is the sandbox of the checks.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from core.credit.base import EPS
from core.serving.qwen3 import Qwen3
from core.serving.tokenizer import ChatTokenizer
from core.tasks.learn import DEFAULTS, POLICY
from core.tasks.line_agent import DONE, MAX_TOKENS, MAX_TURNS
from core.trainer import Batch, Guard, Trainer, TrainingRow

ROOT = Path(__file__).resolve().parents[2]
INVALID = ("error", "none")
"""Results of actions that are not in the language, or name a file that does not exist."""


def program(path: str) -> Any:
    """A program of the repository as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[Path(path).stem] = module
    spec.loader.exec_module(module)
    return module


maker = program("demo_data/make_policy.py")
trainer = program("examples/train_policy.py")


@dataclass(slots=True)
class Attempt:
    """One attempt: its steps as they are fetched, whether the files are right, and whether each action was valid."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    reward: float = 0.0
    valid: bool = True


def attempt_all(
    model: Qwen3, tokenizer: ChatTokenizer, tasks: Sequence[Any], seeds: Sequence[int], *, temperature: float = 1.0
) -> list[Attempt]:
    """Attempt each task with its seed; turn t is sampled with ``seed + t``, as the demo's agent asks the engine to."""
    made = [Attempt() for _ in tasks]
    worlds = [maker.MemoryFiles(task.files) for task in tasks]
    caches = [model.new_cache() for _ in tasks]
    context = [tokenizer.encode(tokenizer.render([{"role": "user", "content": task.prompt}])) for task in tasks]
    unread = [list(ids) for ids in context]
    live = list(range(len(tasks)))
    with torch.inference_mode():
        for turn in range(MAX_TURNS):
            if not live:
                break
            answers = _answers(model, tokenizer, live, unread, caches, [seeds[n] + turn for n in live], temperature)
            still = []
            for n, (ids, logprobs) in zip(live, answers, strict=True):
                made[n].steps.append({"prompt_ids": context[n], "response_ids": ids, "response_logprobs": logprobs})
                ended = ids[-1] in tokenizer.end_ids
                action = tokenizer.decode(ids[:-1] if ended else ids)
                if action.strip() == DONE:
                    continue
                result = worlds[n].call(action)
                made[n].valid &= ended and result not in INVALID
                # An answer that was cut at the token limit gets its end mark from the chat template.
                closing = [] if ended else [tokenizer.end_ids[0]]
                following = closing + tokenizer.encode(tokenizer.render([{"role": "user", "content": result}]))
                context[n] = [*context[n], *ids, *following]
                unread[n] = [ids[-1], *following]
                still.append(n)
            live = still
    for one, world, task in zip(made, worlds, tasks, strict=True):
        world.files.pop(maker.SPARE, None)
        one.reward = float(world.files == task.expected)
    return made


def _answers(
    model: Qwen3,
    tokenizer: ChatTokenizer,
    live: Sequence[int],
    unread: list[list[int]],
    caches: Sequence[Any],
    seeds: Sequence[int],
    temperature: float,
) -> list[tuple[list[int], list[float]]]:
    """One answer for each live attempt: ids and log-probs in nats."""
    draws = {n: random.Random(seed) for n, seed in zip(live, seeds, strict=True)}
    said: dict[int, tuple[list[int], list[float]]] = {n: ([], []) for n in live}
    speaking = list(live)
    for _ in range(MAX_TOKENS):
        logits_BV = model.forward([unread[n] for n in speaking], [caches[n] for n in speaking])
        logprobs_BV = logits_BV.log_softmax(-1)
        if temperature == 0:
            chosen_B = logits_BV.argmax(-1)
        else:
            cumulative_BV = (logits_BV.double() / temperature).softmax(-1).cumsum(-1)
            at_B = torch.tensor([draws[n].random() for n in speaking], dtype=torch.float64) * cumulative_BV[:, -1]
            chosen_B = torch.searchsorted(cumulative_BV, at_B[:, None], right=True)[:, 0]
        of_chosen = logprobs_BV.gather(1, chosen_B[:, None])[:, 0].tolist()
        for n, token, logprob in zip(speaking, chosen_B.tolist(), of_chosen, strict=True):
            said[n][0].append(token)
            said[n][1].append(logprob)
            unread[n] = [token]
        speaking = [n for n in speaking if said[n][0][-1] not in tokenizer.end_ids]
        if not speaking:
            break
    return [said[n] for n in live]


def grpo(rewards_GN: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The studio's GRPO advantages, ``core.credit.grpo``, for groups of equal size: float64 [G, N]."""
    deviation = rewards_GN - rewards_GN.mean(-1, keepdims=True)
    advantages: np.ndarray[Any, Any] = deviation / (rewards_GN.std(-1, ddof=1, keepdims=True) + EPS)
    return advantages


def shipped_tasks() -> tuple[list[Any], list[Any]]:
    """The training and the held-out tasks of ``demo_data/policy``, drawn again from their seed."""
    draw = random.Random(f"{maker.SEED}/tasks")
    made = [
        maker.draw_task(maker.KINDS[n % len(maker.KINDS)], draw)
        for n_tasks in (maker.N_TRAIN, maker.N_HELD_OUT)
        for n in range(n_tasks)
    ]
    return made[: maker.N_TRAIN], made[maker.N_TRAIN :]


Spoil = Callable[[list[TrainingRow], random.Random], None]
"""Changes a batch's rows before the update; ``examples/train_policy.py`` has one that exchanges advantages."""


def run(
    seed: int,
    *,
    updates: int,
    evaluate: Callable[[Qwen3, ChatTokenizer], dict[str, float]],
    spoil: Spoil | None = None,
    staleness: int = 0,
    guarded: bool = True,
) -> tuple[list[dict[str, float]], list[dict[str, Any]]]:
    """A run of the shipped policy; returns its evaluations before and after, and the metrics of each update.

    Args:
        spoil: of the control; None trains on the true advantages.
        staleness: versions by which the rollouts of an update are behind, or fewer at the begin of the run.
        guarded: False trains although captured and recomputed log-probs differ.
    """
    torch.manual_seed(seed)
    folder = POLICY / "model"
    arguments = argparse.Namespace(
        algorithm="grpo", critic=False, kl=0.0, lr=DEFAULTS.learning_rate, model=folder, token_budget=32768, clip=0.2,
        max_grad_norm=1.0,
    )  # fmt: skip
    learner = trainer.Learner(folder, arguments)
    tokenizer = ChatTokenizer(folder)
    client = Trainer("http://127.0.0.1:9", "unused", guard=Guard() if guarded else None)
    samplers = deque([Qwen3.load(folder)], maxlen=staleness + 1)
    draw = random.Random(f"{seed}/tasks")
    train, _ = shipped_tasks()
    order: list[Any] = []
    before, metrics = evaluate(samplers[-1], tokenizer), []
    for update in range(updates):
        order += draw.sample(train, len(train)) if len(order) < DEFAULTS.n_tasks else []
        tasks = [order.pop() for _ in range(DEFAULTS.n_tasks)]
        each = [task for task in tasks for _ in range(DEFAULTS.n_rollouts)]
        attempts = attempt_all(samplers[0], tokenizer, each, [draw.getrandbits(31) for _ in each])
        batch = Batch(str(update), update, _steps(attempts, max(0, update - staleness)), {}, client)
        rows = batch.rows()
        if spoil is not None:
            spoil(rows, random.Random(f"{seed} {update}"))
        metrics.append(learner.update(batch, rows, update))
        samplers.append(_sampler(learner.model, samplers[-1]))
    return [before, evaluate(samplers[-1], tokenizer)], metrics


def _steps(attempts: Sequence[Attempt], version: int) -> list[dict[str, Any]]:
    n = DEFAULTS.n_rollouts
    rewards = np.array([one.reward for one in attempts])
    advantages = grpo(rewards.reshape(-1, n)).ravel()
    return [
        {
            **step,
            "step_uid": f"{place}-{k}",
            "trajectory_uid": str(place),
            "prompt_uid": str(place // n),
            "step_index": k,
            "advantage": float(advantages[place]),
            "trajectory_reward": one.reward,
            "policy_version": version,
        }
        for place, one in enumerate(attempts)
        for k, step in enumerate(one.steps)
    ]


def _sampler(model: Any, before: Qwen3) -> Qwen3:
    """The engine's forward pass with a copy of the trainer's weights."""
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return Qwen3(before.config, weights)
