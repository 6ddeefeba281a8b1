"""Hits of redaction rules: one match in a text, and the sum of many."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Hit(NamedTuple):
    """A place of a text that must not leave, (begin, end) in characters; ``said`` is what patterns matched in there."""

    begin: int
    end: int
    rule: str
    said: tuple[str, ...]


@dataclass(slots=True)
class HitSummary:
    """What was found.

    Attributes:
        counts: rule -> hits.
        said: (rule, what was found), each once.
        thoughts: whether what stands in an answer's reasoning is in ``said``; chat templates leave earlier ones out.
    """

    counts: Counter[str] = field(default_factory=Counter)
    said: dict[tuple[str, str], None] = field(default_factory=dict)
    thoughts: bool = True

    def add(self, hit: Hit) -> None:
        """One more."""
        self.counts[hit.rule] += 1
        self.said.update(dict.fromkeys((hit.rule, said) for said in hit.said))

    def include(self, other: HitSummary) -> None:
        """And what another found."""
        self.counts += other.counts
        self.said |= other.said
