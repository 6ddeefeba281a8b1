"""A verifier that takes the user's next message as the signal: a judge says what it tells about the answer before."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from core.rewards.base import Score, Unscored
from core.rewards.judging import Bench, content_text, fenced, level_of, transcript_text
from core.rewards.services import Message, Services

LEVELS = {
    1.0: "the user accepts the answer, thanks, or builds on it",
    0.5: "the user asks for a change of something that was mostly right",
    0.0: "the user rejects or corrects the answer, or repeats the request",
}
NO_SIGNAL = "none"
QUESTION = """{answer}

{reply}

## Criterion
What does the user's next message say about the agent's answer?
{levels}
- "{none}": it says nothing about it, for example a new request

Answer with {{"reason": "one sentence", "level": number or "{none}"}}."""


def verify(workspace: Path, spec: Mapping[str, Any], services: Services) -> Score:
    """Mean level over the answers of ``spec["payload"]["transcript"]`` that a message of the user follows; in [0, 1].

    Each is judged ``spec["votes"]`` times (1). An answer counts if a vote found a signal. ``details`` has ``turns``:
    ``message`` (index of the user's message), ``score`` (or None), ``votes`` and ``reasons``. After Claw-R1's
    next-state reward.

    Raises:
        Unscored: no message of the user follows an answer, or none is about it (``missing``).
    """
    bench = Bench(spec, services)
    pairs = replies_of((spec.get("payload") or {}).get("transcript") or [])
    if not pairs:
        raise Unscored("missing", "no message of the user follows an answer of the agent")
    turns = [_judged(at, answer, reply, bench) for at, answer, reply in pairs]
    scores = [turn["score"] for turn in turns if turn["score"] is not None]
    details = {"turns": turns, "judge": bench.cost()}
    if not scores:
        raise Unscored("missing", "no message of the user says anything about the answer before", details)
    return Score(math.fsum(scores) / len(scores), details)


def replies_of(messages: Sequence[Message]) -> list[tuple[int, str, str]]:
    """Index of each message of the user that follows an answer, the answer with its tool calls, and the message."""
    pairs: list[tuple[int, str, str]] = []
    since: list[Message] = []
    for at, message in enumerate(messages):
        if message.get("role") != "user":
            since.append(message)
            continue
        answered = any(one.get("role") == "assistant" for one in since)
        text = content_text(message.get("content"))
        if answered and text.strip():
            pairs.append((at, transcript_text(since), text))
        since = []
    return pairs


def _judged(at: int, answer: str, reply: str, bench: Bench) -> dict[str, Any]:
    question = QUESTION.format(
        answer=fenced("Answer of the agent", answer),
        reply=fenced("Next message of the user", reply),
        levels="\n".join(f"- {level:g}: {text}" for level, text in LEVELS.items()),
        none=NO_SIGNAL,
    )

    def read(vote: Mapping[str, Any]) -> tuple[float | None, str] | None:
        level = level_of(vote.get("level"), list(LEVELS))
        if level is None and vote.get("level") != NO_SIGNAL:
            return None
        return level, str(vote.get("reason") or "")

    votes = bench.votes(question, read)
    levels = [level for level, _ in votes if level is not None]
    return {
        "message": at,
        "score": math.fsum(levels) / len(levels) if levels else None,
        "votes": [level for level, _ in votes],
        "reasons": [reason for _, reason in votes],
    }
