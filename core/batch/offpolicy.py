"""Log-prob differences of consumed batches, summed up by staleness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """Captured against recomputed log-probs of all steps with one staleness.

    Attributes:
        staleness: versions between the one that sampled and the one that trained.
        n_batches: batches with such steps.
        n_tokens: tokens that were compared.
        mean, greatest: of |captured − recomputed| over tokens, nats.
        kl: nats per token.
    """

    staleness: int
    n_batches: int
    n_tokens: int
    mean: float
    greatest: float
    kl: float


def by_staleness(rows: Sequence[Mapping[str, Any]]) -> list[OffPolicy]:
    """One entry per staleness, ascending; ``rows`` as of ``pool.consumption.differences``."""
    entries = []
    for staleness in sorted({row["staleness"] for row in rows}):
        chosen = [row for row in rows if row["staleness"] == staleness]
        n_tokens = sum(row["n_tokens"] for row in chosen)

        def mean(column: str, chosen: Sequence[Mapping[str, Any]] = chosen, n: int = n_tokens) -> float:
            return math.fsum(row[column] * row["n_tokens"] for row in chosen) / n

        greatest = max(row["greatest"] for row in chosen)
        n_batches = len({row["batch_uid"] for row in chosen})
        entries.append(OffPolicy(staleness, n_batches, n_tokens, mean("mean"), greatest, mean("kl")))
    return entries
