"""Several choices from engines that give one at a time: asked one by one, put together as one answer."""

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
"""More are refused where each is a call of its own: OpenAI's own limit."""
AT_A_TIME = 8

_SUMMED = ("completion_tokens", "reasoning_tokens")


def n_choices(body: Mapping[str, Any]) -> int:
    """How many choices a call wants of its one prompt; 1 where its prompts are several."""
    n, prompt = body.get("n"), body.get("prompt")
    if isinstance(prompt, list) and not all(isinstance(token, int) for token in prompt):
        return 1
    return n if isinstance(n, int) and n > 1 else 1


async def one_by_one(call: EngineCall, n: int, ask: Ask, first: EngineAnswer | None) -> EngineAnswer:
    """The choices of ``n`` calls that want one each.

    Args:
        first: an answer with fewer choices than that; those count. None when there is none yet.

    Returns:
        The whole, or the first refusal among them. Raises as ``ask``.
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
    # What is recorded is made of what came: a parsed body may lack what nobody reads on the way through.
    bodies = [orjson.loads(answer.raw) for answer in answers]
    choices = [choice for body in bodies for choice in body["choices"]][:n]
    body = {**bodies[0], "choices": [{**choice, "index": index} for index, choice in enumerate(choices)]}
    # llama.cpp's drawer holds one choice's tokens; its prompt is everybody's.
    if isinstance(drawer := body.pop("__verbose", None), dict) and "prompt" in drawer:
        body["__verbose"] = {"prompt": drawer["prompt"]}
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
    """The prompt counts once, as where an engine makes all choices itself."""
    known = [usage for usage in usages if isinstance(usage, dict)]
    total = dict(known[0])
    for name in _SUMMED:
        if isinstance(total.get(name), int):
            total[name] = sum(usage[name] for usage in known if isinstance(usage.get(name), int))
    if isinstance(total.get("prompt_tokens"), int) and isinstance(total.get("completion_tokens"), int):
        total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    return total
