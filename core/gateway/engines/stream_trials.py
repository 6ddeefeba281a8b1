"""Decides whether engines that return no ids may stream.

Without ids a stream can't lose ids, but it may lose usage or log-probs, or pass a tool call as plain text. So the
gateway sends one small greedy request of its own, whole and as a stream, and trusts the stream if both answers are
equal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from core.dialects import Json
from core.dialects.assembly import Assembly
from core.errors import EngineError
from core.gateway.engines.capabilities import TOOLS
from core.gateway.engines.flavours import prompt_text
from core.gateway.engines.response_bodies import error_message, maybe_json
from core.gateway.engines.streams import HttpStream, StreamDeadline
from core.gateway.served_dialects import check_answer
from core.gateway.transport.connection import HttpError
from core.gateway.transport.connection_pool import Timeouts
from core.gateway.transport.http1 import HttpAnswer
from core.tokens import extract_tokens

TRY_AGAIN_S: Final = 900.0
TRIALS: Final = 3
"""The engine may be busy, or the model may fail once. After these trials whole answers are used."""
TRIAL_TIMEOUT_S: Final = 120.0
_MAX_MODELS: Final = 200
"""Model names come from outside; further models use whole answers."""

_STREAM: Final = {"stream": True, "stream_options": {"include_usage": True}}
_SHORT: Final = {"max_tokens": 16, "temperature": 0}
_WEATHER_SCHEMA: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_QUESTIONS: Final[Mapping[str, Json]] = {
    "chat": {**_SHORT, "messages": [{"role": "user", "content": "Say hi"}]},
    "completions": {**_SHORT, "prompt": "Once upon"},
    TOOLS: {
        **_SHORT,
        # Some models reason before they call.
        "max_tokens": 512,
        "messages": [{"role": "user", "content": "What is the weather in Paris? Call the tool."}],
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": _WEATHER_SCHEMA}}],
        "tool_choice": "required",
    },
}

Send = Callable[[Json], Awaitable[HttpAnswer]]
"""Sends a request to the engine. Raises EngineError."""


class StreamTrials:
    """Results of the trials of one engine's streams, by model and kind of call."""

    def __init__(self, name: str, timeouts: Timeouts, clock: Callable[[], float]) -> None:
        self._name = name
        self._timeouts = timeouts
        self._clock = clock
        self._reasons: dict[tuple[str, str], str | None] = {}
        self._with_logprobs: set[tuple[str, str]] = set()
        self._trials: dict[tuple[str, str], tuple[int, float]] = {}
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}

    def relays(self, model: str, kind: str) -> bool:
        """Whether a stream was found to be equal to the whole answer."""
        return self._reasons.get((model, kind), "unknown") is None

    def start_trial(self, model: str, kind: str, answer: Json, send: Send) -> None:
        """Start a trial in the background if a whole answer has no ids."""
        key = (model, kind)
        n_trials, next_at = self._trials.get(key, (0, 0.0))
        if key in self._running or self.relays(model, kind) or n_trials >= TRIALS or self._clock() < next_at:
            return
        if not has_no_ids(answer, kind) or (key not in self._trials and len(self._trials) >= _MAX_MODELS):
            return
        self._trials[key] = (n_trials + 1, self._clock() + TRY_AGAIN_S)
        self._reasons[key] = "it is being tried out"
        task = self._running[key] = asyncio.create_task(self._try(model, kind, send))
        task.add_done_callback(lambda _: self._running.pop(key, None))

    def check_stream(self, model: str, kind: str, answer: Json) -> None:
        """Check a relayed stream; if it lacks something, whole answers are used from then on."""
        if not has_no_ids(answer, kind):
            self._reasons[model, kind] = "it returns ids now"
        elif None in _counts(answer):
            self._reasons[model, kind] = "its stream has no usage"
        elif (model, kind) in self._with_logprobs and not _entries(answer["choices"][0]):
            self._reasons[model, kind] = "its stream has no log-probs"

    def forget(self) -> None:
        """Forget everything; the engine was restarted."""
        self._reasons.clear()
        self._trials.clear()

    def why_not(self, kind: str) -> str | None:
        """Why a kind of call is not relayed; "" if it is, None if nothing is known."""
        reasons = [why for (_, known), why in self._reasons.items() if known == kind]
        return next((why for why in reasons if why is not None), "" if reasons else None)

    async def _try(self, model: str, kind: str, send: Send) -> None:
        question = {"model": model, **_QUESTIONS[kind]}
        try:
            async with asyncio.timeout(TRIAL_TIMEOUT_S):
                full = await self._read_answer(await send(question))
                streamed = await self._read_stream(await send({**question, **_STREAM}))
            self._reasons[model, kind] = difference(full, streamed, kind)
            if _entries(full["choices"][0]):
                self._with_logprobs.add((model, kind))
        except TimeoutError:
            self._reasons[model, kind] = "no answer when it was tried out"
        except (EngineError, HttpError) as error:
            self._reasons[model, kind] = f"when it was tried out: {error}"
        except (AttributeError, KeyError, TypeError) as error:
            self._reasons[model, kind] = f"its answers have an unexpected shape: {error}"

    async def _read_answer(self, response: HttpAnswer) -> Json:
        async with response:
            raw = await response.read()
        body = maybe_json(raw)
        if response.status != 200:
            raise EngineError(f"status {response.status}, {error_message(body, raw)}")
        return check_answer(body)

    async def _read_stream(self, response: HttpAnswer) -> Json:
        if response.status != 200 or response.content_type != "text/event-stream":
            await self._read_answer(response)
            raise EngineError("it does not stream")
        deadline = asyncio.get_running_loop().time() + TRIAL_TIMEOUT_S
        stream_deadline = StreamDeadline(self._name, deadline, self._timeouts)
        assembly = Assembly()
        stream = HttpStream(response, name=self._name, added=(), stream_deadline=stream_deadline, finish=_nothing)
        async with aclosing(stream.batches()) as batches:
            async for chunks in batches:
                for chunk in chunks:
                    assembly.feed(chunk)
        if not assembly.ended:
            raise EngineError("its stream has no end")
        return check_answer(assembly.full_answer())


async def _nothing(body: Json | None, failure: str | None) -> None:
    """Trials are neither counted nor recorded."""


def has_no_ids(answer: Json, kind: str) -> bool:
    """Whether an answer has neither response ids nor prompt ids."""
    tokens = extract_tokens(answer, 0, _dialect(kind))
    return tokens.response_ids is None and tokens.prompt_ids is None and prompt_text(answer) is None


def difference(full: Json, streamed: Json, kind: str) -> str | None:
    """How a stream differs from the whole answer to the same request; None if it does not."""
    if not (has_no_ids(full, kind) and has_no_ids(streamed, kind)):
        return "it returns ids"
    if None in _counts(streamed) or _counts(full) != _counts(streamed):
        return "its stream has other token counts"
    if len(full["choices"]) != 1 or len(streamed["choices"]) != 1:
        return "its stream has another number of choices"
    one, other = full["choices"][0], streamed["choices"][0]
    if kind == TOOLS and not _calls(one):
        return "it called no tool when it was tried out"
    for what, part_of in _COMPARED.items():
        if part_of(one) != part_of(other):
            return f"its stream has {what}"
    return None


def _counts(answer: Json) -> tuple[Any, Any]:
    usage = answer.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    return counts.get("prompt_tokens"), counts.get("completion_tokens")


def _texts(choice: Json) -> Json:
    """Content, reasoning and refusal by field."""
    fields = {"text": choice.get("text"), **(choice.get("message") or {})}
    return {name: text for name, text in fields.items() if name != "role" and isinstance(text, str) and text}


def _calls(choice: Json) -> list[tuple[Any, Any]]:
    """Names and arguments; ids differ between answers."""
    calls = (choice.get("message") or {}).get("tool_calls") or ()
    functions = [call.get("function") or {} for call in calls]
    return [(function.get("name"), _parsed(function.get("arguments"))) for function in functions]


def _parsed(arguments: Any) -> Any:
    parsed = maybe_json(arguments.encode()) if isinstance(arguments, str) else None
    return arguments if parsed is None else parsed


def _entries(choice: Json) -> list[Any]:
    """The sampled tokens as named by the log-probs, whose values may differ in the last digits."""
    logprobs = choice.get("logprobs") or {}
    return logprobs.get("tokens") or [entry.get("token") for entry in logprobs.get("content") or ()]


_COMPARED: Final[Mapping[str, Callable[[Json], Any]]] = {
    "other words": _texts,
    "other tool calls": _calls,
    "other log-probs": _entries,
    "another finish reason": lambda choice: choice.get("finish_reason"),
}


def _dialect(kind: str) -> str:
    return "completions" if kind == "completions" else "chat"
