"""Imports slime samples (tokens, loss mask, rollout log-probs) from JSON lines or from a rollout's ``.pt`` file.

Each run of ones in the loss mask is one sampled turn, and becomes a step with its exact ids. Samples with the same
``rollout_id`` are parts of one execution, and become one trajectory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.imports.base import (
    ConvertedRecord,
    Format,
    Problem,
    ReadResult,
    Repeats,
    convert_record,
    finished,
    number,
    text,
)
from core.imports.bounds import load_torch
from core.imports.files import Raw, records

NAME = "slime"
FINISH = {"truncated": "length", "aborted": "abort"}


@dataclass(slots=True)
class _Rollout:
    """The state of one execution while its samples are read.

    Attributes:
        left: number of its samples that are not read yet.
        rewards: distinct rewards of its samples; usually all have the reward of the execution.
        uid: its trajectory uid, set with the first sample.
        n_steps: number of steps so far.
    """

    left: int = 0
    rewards: set[Any] = field(default_factory=set)
    uid: str | None = None
    n_steps: int = 0


def read(path: Path) -> Iterator[ReadResult]:
    """Read JSON lines, or the samples of a ``.pt`` file, which is loaded into memory without running code in it.

    The samples are read twice: first to determine the last sample of each execution.
    """
    if not _is_torch(path):
        yield from _read(lambda: records(path))
        return
    held = load_torch(path)
    samples = held.get("samples") if isinstance(held, Mapping) else held
    if not isinstance(samples, list):
        yield Problem(path.name, "samples", "not a list of samples")
        return
    yield from _read(lambda: ((f"{path.name}[{index}]", sample) for index, sample in enumerate(samples)))


def _read(samples: Callable[[], Iterator[Raw]]) -> Iterator[ReadResult]:
    rollouts: dict[tuple[Any, Any], _Rollout] = {}
    for _, record in samples():
        if isinstance(record, Mapping) and (key := _rollout_of(record)) is not None:
            rollout = rollouts.setdefault(key, _Rollout())
            rollout.left += 1
            reward = _reward(record)["reward"]
            rollout.rewards.add(reward if isinstance(reward, int | float) else None)
    repeats = Repeats()
    for where, record in samples():
        if isinstance(record, Problem):
            yield record
        elif not isinstance(record, Mapping):
            yield Problem(where, None, "not a JSON object")
        else:
            key = _rollout_of(record)
            rollout = _Rollout(left=1) if key is None else rollouts[key]
            rollout.left -= 1
            yield convert_record(where, record, partial(_sample, where, record, rollout, repeats))


def _rollout_of(record: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """The execution that a sample belongs to; None if the sample is a complete execution."""
    group, rollout = text(record, "group_index"), text(record, "rollout_id")
    return None if rollout is None else (group, rollout)


def _sample(where: str, record: Mapping[str, Any], rollout: _Rollout, repeats: Repeats) -> ConvertedRecord:
    tokens, n_response = record.get("tokens"), record.get("response_length")
    if not isinstance(tokens, list) or not isinstance(n_response, int) or not 0 < n_response <= len(tokens):
        raise InvalidInput("a sample needs tokens and response_length", field="response_length")
    n_prompt = len(tokens) - n_response
    mask = record.get("loss_mask")
    mask = [1] * n_response if mask is None else mask
    scores = record.get("rollout_log_probs")
    for name, values in (("loss_mask", mask), ("rollout_log_probs", scores)):
        if values is not None and len(values) != n_response:
            raise InvalidInput(f"{len(values)} values for {n_response} response tokens", field=name)
    if not set(mask) <= {0, 1}:
        raise InvalidInput("a loss mask must contain only 0 and 1", field="loss_mask")
    runs = list(_runs(mask))
    if not runs:
        raise InvalidInput("the loss mask has no sampled tokens", field="loss_mask")
    rollout.uid = rollout.uid or repeats.uid(record)
    group = text(record, "group_index")
    metadata = record.get("metadata") or {}
    removed = {"status": "aborted", "error": "remove_sample: slime does not train on it"}
    common = {
        "trajectory_uid": rollout.uid,
        "prompt_uid": None if group is None else f"slime-{without_position(where)}-{group}",
        "token_source": "engine",
        "metadata": {**(metadata if isinstance(metadata, Mapping) else {}), "label": record.get("label")},
        **(removed if record.get("remove_sample") else {}),
    }
    # Usually each part has the reward of the whole execution, which is counted once. If they differ, each part counts.
    reward = number(_reward(record), "reward") if rollout.left == 0 or len(rollout.rewards) > 1 else None
    steps = []
    for (start, stop), versions in zip(runs, _versions(record, len(runs)), strict=True):
        last = stop == runs[-1][1]
        step = {
            **common,
            **versions,
            "step_index": rollout.n_steps,
            "prompt_ids": tokens[: n_prompt + start],
            "response_ids": tokens[n_prompt + start : n_prompt + stop],
            "response_logprobs": None if scores is None else scores[start:stop],
            "finish_reason": FINISH.get(str(record.get("status")), "stop") if last else "stop",
            "reward": reward if last else None,
            "is_last": last and rollout.left == 0,
        }
        rollout.n_steps += 1
        steps.append(finished(step, NAME))
    return ConvertedRecord(where, steps)


def _reward(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """An object with ``reward``. In the studio's export, ``reward`` is an object that also has the advantage."""
    reward = record.get("reward")
    return {"reward": reward.get("reward") if isinstance(reward, Mapping) else reward}


def _versions(record: Mapping[str, Any], n_runs: int) -> list[dict[str, int]]:
    """Policy versions of each run. slime records one per call; if the counts differ, first and last are used."""
    versions = [int(one) for one in record.get("weight_versions") or [] if str(one).isdecimal()]
    if len(versions) == n_runs:
        return [{"policy_version": one} for one in versions]
    span = {"policy_version": versions[0], "policy_version_end": versions[-1]} if versions else {}
    return [span] * n_runs


def without_position(where: str) -> str:
    """The file's name without the position, because groups are numbered per file."""
    return where.partition(":")[0].partition("[")[0]


def _runs(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Start and end of each run of ones: ``[0, 1, 1, 0, 1]`` gives ``(1, 3), (4, 5)``."""
    start: int | None = None
    for place, on in enumerate(mask):
        if on and start is None:
            start = place
        elif not on and start is not None:
            yield start, place
            start = None
    if start is not None:
        yield start, len(mask)


def _is_torch(path: Path) -> bool:
    with path.open("rb") as stream:
        return path.suffix in (".pt", ".pth") and stream.read(2) == b"PK"


def _recognises(path: Path, first: Any) -> bool:
    return _is_torch(path) or (isinstance(first, Mapping) and {"tokens", "response_length"} <= first.keys())


FORMAT = Format(NAME, "slime samples (JSON lines, or a rollout's .pt)", _recognises, read)
