"""The first difference between two trajectories, or between two token sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from core.tree.sequences import Sequences

Row = Mapping[str, Any]


class SequenceReader(Protocol):
    """The part of the pool that is read."""

    def sequences(self, step_uids: Sequence[str]) -> Sequences:
        """Prompt and response tokens of each step."""
        ...


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step (``place``, from 0, among the steps given) at which two trajectories differ.

    ``token`` is the first token of that step that differs in its id or in being sampled, counted over prompt and
    response; None when one of the two has no step at that place.
    """

    place: int
    token: int | None


def first_divergent(one: ArrayLike, other: ArrayLike) -> int | None:
    """Index of the first token that differs; the shorter length if one is a prefix of the other; None if equal.

    >>> first_divergent([1, 2, 3], [1, 9, 3]), first_divergent([1], [1, 2]), first_divergent([1], [1])
    (1, 1, None)
    """
    a, b = np.asarray(one), np.asarray(other)
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    if len(differs):
        return int(differs[0])
    return None if len(a) == len(b) else n


def find_divergence(reader: SequenceReader, one: Sequence[Row], other: Sequence[Row]) -> Divergence | None:
    """The first difference of two trajectories; None when all steps and tokens are equal.

    Args:
        reader: reads the tokens. Only the last step of each chain of extended prompts is read, since its context
            contains all earlier ones.
        one, other: their steps in order: step_uid, transition, n_prompt_tokens, n_response_tokens.
    """
    n = min(len(one), len(other))
    ends = sorted(
        {place for steps in (one, other) for place in _chain_ends(steps) if place < n} | ({n - 1} if n else set())
    )
    sequences = reader.sequences([steps[place]["step_uid"] for place in ends for steps in (one, other)])
    begin = 0
    for number, end in enumerate(ends):
        token = first_divergent(_ids(sequences, 2 * number), _ids(sequences, 2 * number + 1))
        for place in range(begin, end + 1):
            at = _differ_at(one[place], other[place], token)
            if at is not None:
                return Divergence(place, at)
        begin = end + 1
    return None if len(one) == len(other) else Divergence(n, None)


def _differ_at(a: Row, b: Row, token: int | None) -> int | None:
    """The first token of two steps that differs in id or in being sampled; ``token``: the chain's first difference."""
    positions = []
    if _prompt(a) != _prompt(b):
        positions.append(min(_prompt(a), _prompt(b)))
    if _length(a) != _length(b):
        positions.append(min(_length(a), _length(b)))
    if token is not None and token < min(_length(a), _length(b)):
        positions.append(token)
    return min(positions) if positions else None


def _chain_ends(steps: Sequence[Row]) -> list[int]:
    return [place - 1 for place in range(1, len(steps)) if steps[place].get("transition") != "extends"] + [
        len(steps) - 1
    ]


def _ids(sequences: Sequences, number: int) -> Any:
    return sequences.ids[sequences.offsets[number] : sequences.offsets[number + 1]]


def _length(step: Row) -> int:
    return _prompt(step) + int(step.get("n_response_tokens") or 0)


def _prompt(step: Row) -> int:
    return int(step.get("n_prompt_tokens") or 0)
