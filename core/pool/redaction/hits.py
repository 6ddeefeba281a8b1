"""Hits of redaction rules: one match in a text, and the sum of many."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Hit(NamedTuple):
    """A match in a text: begin and end in characters. ``said`` holds the texts that patterns matched in it."""

    begin: int
    end: int
    rule: str
    said: tuple[str, ...]


@dataclass(slots=True)
class HitSummary:
    """The hits in many texts.

    Attributes:
        counts: rule -> hits.
        said: (rule, matched text), each once.
        thoughts: whether ``said`` includes matches in an answer's reasoning; chat templates drop earlier reasoning.
    """

    counts: Counter[str] = field(default_factory=Counter)
    said: dict[tuple[str, str], None] = field(default_factory=dict)
    thoughts: bool = True

    def add(self, hit: Hit) -> None:
        """Add a hit."""
        self.counts[hit.rule] += 1
        self.said.update(dict.fromkeys((hit.rule, said) for said in hit.said))

    def include(self, other: HitSummary) -> None:
        """Add the hits of another summary."""
        self.counts += other.counts
        self.said |= other.said
