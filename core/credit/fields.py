"""Step fields that estimators need besides the reward, and which steps lack them.

Producers put these into the step's ``metadata`` (``POST steps``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.credit.types import MESSAGES_MAX, Bools, CreditInput, Floats, Needs

FIELDS: dict[str, str] = {
    "value": "metadata.value: number, the critic's value of the state before the step's first response token",
    "token_values": "metadata.token_values: one number per response token, the critic's value before that token",
    "anchor": "metadata.anchor: the step's observation (text, number or JSON); equal anchors mean the same state",
    "observation": "the step's newest message (tool result or user text), used as its anchor",
    "baseline": "metadata.reward_baseline: number, or a greedy rollout in the group: metadata.greedy true, "
    "or temperature 0",
    "logprobs": "response_logprobs: rollout log-probs, one per response token",
    "teacher_logprobs": "metadata.teacher_logprobs: one number per response token, the teacher's log-prob of it",
}
"""Need -> description of its source, for messages about steps that lack it."""


HOW_TO_GIVE: dict[str, str] = {
    "value": "Send it in the step's metadata (POST /api/v1/steps), or compute it with claw-studio values and choose "
    "that critic in the recipe.",
    "token_values": "Send it in the step's metadata (POST /api/v1/steps), or compute it with claw-studio values and "
    "choose that critic in the recipe.",
    "anchor": "Send it in the step's metadata (POST /api/v1/steps), or set the option anchor to observation.",
    "observation": "Capture the calls with their messages.",
    "baseline": "Send it in the metadata, or sample one rollout of each group at temperature 0.",
    "logprobs": "Use an engine that returns log-probs.",
    "teacher_logprobs": "Send them in the step's metadata (POST /api/v1/steps).",
}
"""Need -> what a person does to meet it."""


@dataclass(frozen=True, slots=True)
class MissingField:
    """A field that steps lack, once for all of them.

    Attributes:
        need: key of ``FIELDS``.
        description: what the field is.
        how: what a person does to give it.
        example: the first step or trajectory without it.
    """

    need: str
    description: str
    how: str
    example: str


def missing_fields(messages: Sequence[str]) -> tuple[list[MissingField], list[str]]:
    """The fields that messages of ``Estimator.lacks`` name, each once; and the messages about something else."""
    missing: dict[str, MissingField] = {}
    others = []
    for message in messages:
        for need, description in FIELDS.items():
            if message.endswith(f" lacks {description}"):
                example = message.removesuffix(f" lacks {description}")
                missing.setdefault(need, MissingField(need, description, HOW_TO_GIVE[need], example))
                break
        else:
            others.append(message)
    return list(missing.values()), others


@dataclass(frozen=True, slots=True, eq=False)
class UnmetNeed:
    """One need that some trajectories don't meet.

    Attributes:
        need: key of ``FIELDS``, or ``contiguous``.
        trajectories: bool [n], trajectories that do not meet it.
        n: number of steps (for ``baseline`` and ``contiguous``: trajectories) that do not meet it.
        messages: one message each; the first ``MESSAGES_MAX``.
    """

    need: str
    trajectories: Bools
    n: int
    messages: list[str]


def unmet(needs: Needs, batch: CreditInput) -> list[UnmetNeed]:
    """Needs that the batch doesn't meet, gaps first; rewards and group sizes are checked elsewhere."""
    missing = []
    if needs.contiguous and batch.missing is not None:
        gaps = [i for i, why in enumerate(batch.missing) if why is not None]
        if gaps:
            texts = [f"trajectory {batch.trajectory_uids[i]}: {batch.missing[i]}" for i in gaps[:MESSAGES_MAX]]
            missing.append(UnmetNeed("contiguous", _mask(len(batch.group), np.array(gaps)), len(gaps), texts))
    for name in needs.fields:
        if name == "baseline":
            lacking = np.ones(len(batch.group), np.bool_) if batch.baseline is None else np.isnan(batch.baseline)
            where = np.flatnonzero(lacking)
            names = [f"trajectory {batch.trajectory_uids[i]}" for i in where[:MESSAGES_MAX].tolist()]
            trajectories = lacking
        else:
            where = np.flatnonzero(_without_field(name, batch))
            names = [batch.step_name(i) for i in where[:MESSAGES_MAX].tolist()]
            trajectories = _mask(len(batch.group), batch.step_trajectory[where])
        if len(where):
            missing.append(UnmetNeed(name, trajectories, len(where), [f"{who} lacks {FIELDS[name]}" for who in names]))
    return missing


def _mask(n: int, where: np.ndarray) -> Bools:
    mask = np.zeros(n, dtype=np.bool_)
    mask[where] = True
    return mask


def _without_field(name: str, batch: CreditInput) -> Bools:
    """Steps without a field: bool [s]."""
    n = len(batch.step_trajectory)
    if name in ("anchor", "observation"):
        if batch.anchor is None:
            return np.ones(n, dtype=np.bool_)
        return np.fromiter((anchor is None for anchor in batch.anchor), np.bool_, n)
    if name == "value":
        return np.ones(n, np.bool_) if batch.value is None else np.isnan(batch.value)
    tokens = {
        "token_values": batch.token_value,
        "logprobs": batch.token_logprob,
        "teacher_logprobs": batch.teacher_logprob,
    }[name]
    return np.ones(n, np.bool_) if tokens is None else _any_unknown(tokens, batch)


def _any_unknown(tokens: Floats, batch: CreditInput) -> Bools:
    step = np.repeat(np.arange(len(batch.step_trajectory)), batch.n_tokens)
    lacking: Bools = np.bincount(step, weights=np.isnan(tokens), minlength=len(batch.step_trajectory)) > 0
    return lacking
