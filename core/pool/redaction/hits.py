"""Hits of redaction rules: one match in a text, and the sum of many."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Hit(NamedTuple):
    """A match in a text: begin and end in characters. ``texts`` are what patterns matched in it."""

    begin: int
    end: int
    rule: str
    texts: tuple[str, ...]


@dataclass(slots=True)
class HitSummary:
    """The hits in many texts.

    Attributes:
        counts: rule -> hits.
        matches: (rule, matched text), each once.
        with_reasoning: whether ``matches`` includes those in an answer's reasoning, which chat templates drop
            from earlier turns.
    """

    counts: Counter[str] = field(default_factory=Counter)
    matches: dict[tuple[str, str], None] = field(default_factory=dict)
    with_reasoning: bool = True

    def add(self, hit: Hit) -> None:
        """Add a hit."""
        self.counts[hit.rule] += 1
        self.matches.update(dict.fromkeys((hit.rule, text) for text in hit.texts))

    def include(self, other: HitSummary) -> None:
        """Add the hits of another summary."""
        self.counts += other.counts
        self.matches |= other.matches
