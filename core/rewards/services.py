"""What verifiers need besides a workspace: a judge, addresses of callbacks, people who label."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.rewards.base import Score

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a judge.

    Attributes:
        text: the answer.
        model: the model that gave it.
        n_prompt_tokens, n_response_tokens: as the engine counts them; None where it does not say.
        cost_usd: price of the call in US dollars; None where it is not known.
        cached: it was stored by an earlier call, and cost nothing now.
    """

    text: str
    model: str
    n_prompt_tokens: int | None = None
    n_response_tokens: int | None = None
    cost_usd: float | None = None
    cached: bool = False


Judge = Callable[[Sequence[Message], int, int], Sequence[Reply]]
"""``judge(messages, n, first)``: n independent answers to a conversation, with the numbers ``first``, ``first + 1``, …
Answers with the same number may be one stored answer. Raises ``Unscored`` (refused) when the budget is
spent, and (crashed, timed_out) when the engine fails."""
Ask = Callable[[Mapping[str, Any]], None]
"""``ask(question)``: requests a label from a person."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one verification.

    Attributes:
        judge: for ``rubric`` and ``next_state``.
        callbacks: name -> address, for ``http_callback``; from the settings and never from a task or a captured body.
        ask: for ``human``.
    """

    judge: Judge | None = None
    callbacks: Mapping[str, str] = field(default_factory=dict)
    ask: Ask | None = None


ServedVerifier = Callable[[Path, Mapping[str, Any], Services], Score]
"""A verifier that needs services."""
