"""A whole trajectory as turns: each message once, tool results beside the calls that they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from studio.kit.format import count, number
from studio.widgets.steps.messages import (
    TRANSITION_TEXT,
    Entry,
    Message,
    calls_of,
    card,
    headline,
    is_only_results,
    results_of,
    same_content,
)

MAX_CHARS = 6_000_000
"""Characters of a transcript; in a larger one, long texts are cut at ``CUT_CHARS``."""
CUT_CHARS = 4_000

Turn = dict[str, Any]


def transcript(steps: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Turns for ``components.transcript_view``.

    Args:
        steps: of ``pool.trajectories.turns``.
    """
    index = {step["step_uid"]: place for place, step in enumerate(steps)}
    answers = {step["step_uid"]: step["response_message"] for step in steps}
    child: dict[str, Mapping[str, Any]] = {}
    for step in steps:
        if step.get("parent_step_uid"):
            child.setdefault(step["parent_step_uid"], step)
    shown: dict[str, set[int]] = {}
    turns = []
    for step in steps:
        messages = list(step["messages"] or [])
        answered = answers.get(step.get("parent_step_uid") or "")
        # Clients may send an answer back with its fields in another order: it is a message that the step adds then.
        repeats = bool(answered and messages and same_content(messages[0], answered))
        entries, hidden = _added(messages, shown.get(step["step_uid"], set()), repeats=repeats)
        if step["response_message"]:
            following = child.get(step["step_uid"])
            answer, consumed = _answer(step["response_message"], following)
            entries.append(answer)
            if following is not None:
                shown.setdefault(following["step_uid"], set()).update(consumed)
        turns.append(
            {
                "uid": step["step_uid"],
                "index": step["step_index"],
                "parent": index.get(step.get("parent_step_uid") or ""),
                "n_shared": step.get("n_shared_messages") or 0,
                "title": headline(step),
                "facts": _facts(step),
                "marks": _marks(step),
                "entries": entries,
                "hidden": hidden,
            }
        )
    return turns


def _added(messages: list[Message], shown: set[int], *, repeats: bool) -> tuple[list[Entry], list[list[Any]]]:
    """The cards of a turn's new messages, and (place, message) of those that have no card of their own.

    ``shown``: numbers of the tool results that stand beside the parent's calls, counted over all of the messages;
    ``repeats``: the first message is the parent's answer, which has its card there.
    """
    numbered: list[tuple[int, str, list[dict[str, Any]]]] = []
    of_message: list[list[int]] = []
    for message in messages:
        results = list(results_of([message]))
        of_message.append(list(range(len(numbered), len(numbered) + len(results))))
        numbered += [(len(numbered) + k, uid, parts) for k, (uid, parts) in enumerate(results)]
    by_id = {uid: (n, parts) for n, uid, parts in numbered if uid and n not in shown}
    taken = set(shown)
    cards: dict[int, Entry] = {}
    for place, message in enumerate(messages):
        calls = []
        for call in [] if repeats and place == 0 else calls_of(message):
            n, parts = by_id.get(call["id"] or "", (None, None))
            if n is not None:
                taken.add(n)
            calls.append({**call, "result": None if parts is None else {"parts": parts}})
        cards[place] = card(message, calls=calls)
    hidden: list[list[Any]] = []
    entries: list[Entry] = []
    for place, message in enumerate(messages):
        if repeats and place == 0:
            hidden.append([place, dict(message)])
            continue
        only_results = message.get("role") == "tool" or is_only_results(message)
        if only_results and of_message[place] and all(n in taken for n in of_message[place]):
            hidden.append([place, dict(message)])
            continue
        if only_results:
            parts = [part for n in of_message[place] if n not in taken for part in numbered[n][2]]
            entries.append({**card(message, role="tool", parts=parts, calls=[]), "place": place})
        else:
            entries.append({**cards[place], "place": place})
    return entries, hidden


def _answer(message: Message, following: Mapping[str, Any] | None) -> tuple[Entry, set[int]]:
    """The card of an answer, and the numbers of the tool results of the following step that it shows."""
    results = list(results_of((following or {}).get("messages") or []))
    by_id = {uid: n for n, (uid, _) in enumerate(results)}
    consumed: set[int] = set()
    calls = []
    for place, call in enumerate(calls_of(message)):
        # Some agents rewrite call ids between turns; then results are matched by their order.
        n = by_id.get(call["id"] or "", place if place < len(results) else None)
        if n is not None:
            consumed.add(n)
        calls.append({**call, "result": None if n is None else {"parts": results[n][1]}})
    return card(message, role="assistant", calls=calls, sampled=True), consumed


def _facts(step: Mapping[str, Any]) -> list[str]:
    """What stands in a turn's heading, beside its number and title."""
    facts = [] if step["call_kind"] == "main" else [str(step["call_kind"])]
    if step["n_response_tokens"] is not None:
        facts.append(f"{count(step['n_response_tokens'])} tokens sampled")
    if step["finish_reason"]:
        facts.append(f"finish: {step['finish_reason']}")
    if step["reward"] is not None:
        facts.append(f"reward {number(step['reward'])}")
    return [*facts, *([] if step["trainable"] else ["not trainable"])]


def _marks(step: Mapping[str, Any]) -> list[str]:
    """What is unusual about a turn, a line each."""
    marks = [TRANSITION_TEXT[step["transition"]]] if step["transition"] in TRANSITION_TEXT else []
    if step["findings"]:
        marks.append("Findings: " + ", ".join(step["findings"]))
    if step["messages"] is None:
        marks.append("The messages of this step are unknown.")
    if step["error"]:
        marks.append(f"The call failed: {step['error']}")
    return marks


def shortened(turns: list[Turn]) -> int:
    """Cut long texts in place if all together exceed ``MAX_CHARS``; returns how many were cut."""
    if sum(entry["n_chars"] for turn in turns for entry in turn["entries"]) <= MAX_CHARS:
        return 0
    n_cut = 0
    for turn in turns:
        for entry in turn["entries"]:
            inner = [part for call in entry["calls"] if call["result"] for part in call["result"]["parts"]]
            for part in [*entry["parts"], *inner, *entry["calls"]]:
                for name in ("text", "arguments"):
                    text = part.get(name)
                    if isinstance(text, str) and len(text) > CUT_CHARS:
                        part[name] = (
                            f"{text[:CUT_CHARS]}\n… {count(len(text) - CUT_CHARS)} more characters: open the step"
                        )
                        n_cut += 1
    return n_cut
