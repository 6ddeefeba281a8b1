"""Several choices from engines that return one: one call per choice, merged into one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from core.dialects.errors import openai_error
from core.errors import InvalidInput
from core.gateway.engines.answer import EngineAnswer, EngineCall

Ask = Callable[[EngineCall], Awaitable[EngineAnswer]]

MAX_CHOICES = 128
"""OpenAI's own limit; more are refused, because each is a separate call."""
AT_A_TIME = 8

_SUMMED = ("completion_tokens", "reasoning_tokens")


def n_choices(body: Mapping[str, Any]) -> int:
    """The number of choices that a call requests for one prompt; 1 if it has several prompts."""
    n, prompt = body.get("n"), body.get("prompt")
    if isinstance(prompt, list) and not all(isinstance(token, int) for token in prompt):
        return 1
    return n if isinstance(n, int) and n > 1 else 1


async def separate_calls(call: EngineCall, n: int, ask: Ask, first: EngineAnswer | None) -> EngineAnswer:
    """``n`` choices from separate calls.

    Args:
        first: an answer with fewer choices, which are kept; None if there is none.

    Returns:
        The merged answer, or the first refusal. Raises as ``ask``.
    """
    if n > MAX_CHOICES:
        return _too_many(n, call)
    if first is None:
        first = await ask(_single(call, 0))
        if first.status != 200:
            return first
    known = len(first.body["choices"])
    room = asyncio.Semaphore(AT_A_TIME)

    async def one(number: int) -> EngineAnswer:
        async with room:
            return await ask(_single(call, number))

    others = await asyncio.gather(*(one(number) for number in range(known, n)))
    refused = next((answer for answer in others if answer.status != 200), None)
    if refused is not None:
        return refused
    answers = [first, *others]
    # The raw bodies are merged, because a parsed body may lack long id lists.
    bodies = [orjson.loads(answer.raw) for answer in answers]
    choices = [choice for body in bodies for choice in body["choices"]][:n]
    body = {**bodies[0], "choices": [{**choice, "index": index} for index, choice in enumerate(choices)]}
    # llama.cpp's __verbose holds the tokens of one choice; its prompt is the same for all.
    if isinstance(verbose := body.pop("__verbose", None), dict) and "prompt" in verbose:
        body["__verbose"] = {"prompt": verbose["prompt"]}
    if isinstance(body.get("usage"), dict):
        body["usage"] = _summed_usage([one.get("usage") for one in bodies])
    return replace(
        first,
        raw=orjson.dumps(body),
        body=body,
        dropped=[*first.dropped, "n"],
        facts={**first.facts, "calls_for_choices": len(answers)},
    )


def _too_many(n: int, call: EngineCall) -> EngineAnswer:
    text = f"{n} choices of an engine that gives one at a time"
    refusal = InvalidInput(text, field="n", hint=f"at most {MAX_CHOICES}")
    body = openai_error(refusal)
    return EngineAnswer(400, orjson.dumps(body), body, call.model or "")


def _single(call: EngineCall, number: int) -> EngineCall:
    body = {name: value for name, value in call.body.items() if name not in ("n", "best_of")}
    if number and isinstance(body.get("seed"), int):
        # The same seed would give the same choice again.
        body["seed"] += number
    return replace(call, body=body)


def _summed_usage(usages: list[Any]) -> dict[str, Any]:
    """Summed usage; the prompt counts once, as for an engine that makes all choices itself."""
    known = [usage for usage in usages if isinstance(usage, dict)]
    total = dict(known[0])
    for name in _SUMMED:
        if isinstance(total.get(name), int):
            total[name] = sum(usage[name] for usage in known if isinstance(usage.get(name), int))
    if isinstance(total.get("prompt_tokens"), int) and isinstance(total.get("completion_tokens"), int):
        total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    return total
