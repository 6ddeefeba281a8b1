"""slime samples: tokens, loss mask and rollout log-probs per sample, as JSON lines or in a rollout's ``.pt`` file.

Each run of ones in the loss mask is what the policy sampled in one turn, and becomes a step with its exact ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.imports.base import Format, Found, Problem, Repeats, Taken, finished, number, taken, text
from core.imports.files import converted

NAME = "slime"
FINISH = {"truncated": "length", "aborted": "abort"}


def read(path: Path) -> Iterator[Found]:
    """Lines, or the samples of a ``.pt`` file; the latter is read whole, and without running anything in it."""
    repeats = Repeats()
    if _is_torch(path):
        yield from _from_torch(path, repeats)
    else:
        yield from converted(path, lambda where, record: _sample(where, record, repeats))


def _from_torch(path: Path, repeats: Repeats) -> Iterator[Found]:
    import torch

    held = torch.load(path, weights_only=True)
    samples = held.get("samples") if isinstance(held, Mapping) else held
    if not isinstance(samples, list):
        yield Problem(path.name, "samples", "no list of samples")
        return
    for index, sample in enumerate(samples):
        where = f"{path.name}[{index}]"
        yield taken(where, sample, partial(_sample, where, sample, repeats))


def _sample(where: str, record: Mapping[str, Any], repeats: Repeats) -> Taken:
    tokens, n_response = record.get("tokens"), record.get("response_length")
    if not isinstance(tokens, list) or not isinstance(n_response, int) or not 0 < n_response <= len(tokens):
        raise InvalidInput("a sample needs tokens and how many of them are its response", field="response_length")
    n_prompt = len(tokens) - n_response
    mask = record.get("loss_mask")
    mask = [1] * n_response if mask is None else mask
    scores = record.get("rollout_log_probs")
    for name, values in (("loss_mask", mask), ("rollout_log_probs", scores)):
        if values is not None and len(values) != n_response:
            raise InvalidInput(f"{len(values)} values for {n_response} response tokens", field=name)
    runs = list(_runs(mask))
    if not runs:
        raise InvalidInput("nothing in it was sampled by the policy", field="loss_mask")
    group = text(record, "group_index")
    metadata = record.get("metadata") or {}
    versions = record.get("weight_versions") or []
    common = {
        "trajectory_uid": repeats.uid(record),
        "prompt_uid": None if group is None else f"slime-{path_free(where)}-{group}",
        "token_source": "engine",
        "policy_version": int(versions[0]) if versions and str(versions[0]).isdecimal() else None,
        "metadata": {**(metadata if isinstance(metadata, Mapping) else {}), "label": record.get("label")},
    }
    reward = number(record, "reward")
    steps = []
    for index, (start, stop) in enumerate(runs):
        last = index == len(runs) - 1
        step = {
            **common,
            "step_index": index,
            "prompt_ids": tokens[: n_prompt + start],
            "response_ids": tokens[n_prompt + start : n_prompt + stop],
            "response_logprobs": None if scores is None else scores[start:stop],
            "finish_reason": FINISH.get(str(record.get("status")), "stop") if last else "stop",
            "reward": reward if last else None,
            "is_last": last,
        }
        steps.append(finished(step, NAME))
    return Taken(where, steps)


def path_free(where: str) -> str:
    """The file's name without the place in it: groups are counted per file."""
    return where.partition(":")[0].partition("[")[0]


def _runs(mask: Sequence[int]) -> Iterator[tuple[int, int]]:
    """``[0, 1, 1, 0, 1]`` gives ``(1, 3), (4, 5)``."""
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
