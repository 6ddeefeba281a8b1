"""OpenAI chat and completions. Engines use the same APIs, so only event streams are built here.

An engine's own stream can lose ids and log-probs, above all with tools. So the gateway may request an answer without
streaming, record it, and stream it to the agent from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from core.dialects.base import Dialect, Json, ResponseIds, maybe_text, reasoning_of
from core.dialects.errors import openai_error
from core.errors import StudioError

KEEP_ALIVE: Final = b": keep-alive\n\n"
DONE: Final = b"data: [DONE]\n\n"

_WHOLE_ONLY = frozenset({"role", "content", "tool_calls", "reasoning", "reasoning_content"})
_CHOICE = frozenset({"index", "message", "logprobs", "finish_reason", "token_ids"})
_REASONING: Final = ("reasoning", "reasoning_content")
_ENVELOPE = ("id", "created", "model", "system_fingerprint", "service_tier")

Stream = Callable[[Mapping[str, Any], Mapping[str, Any]], bytes]


class PlainTranslation:
    """A call in a dialect that engines also use.

    Args:
        stream: answer and request -> the bytes of an event stream.
    """

    response_id: str | None = None
    dropped: Sequence[str] = ()

    def __init__(self, body: Mapping[str, Any], stream: Stream) -> None:
        self.engine_request = body
        self._stream = stream

    def full_answer(self, answer: Mapping[str, Any]) -> Json:
        """The answer itself."""
        return dict(answer)

    def stream(self, answer: Mapping[str, Any]) -> bytes:
        """The chunks of a whole answer."""
        return self._stream(answer, self.engine_request)

    def relay(self) -> PlainRelay:
        """For an engine that streams."""
        return PlainRelay(self.engine_request)


class PlainRelay:
    """The engine's chunks unchanged; usage is removed unless the agent requested it."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._with_usage = wants_usage(request)

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        """The chunk."""
        if not self._with_usage and "usage" in chunk:
            if not chunk.get("choices"):
                return b""
            chunk = {name: value for name, value in chunk.items() if name != "usage"}
        return event(chunk)

    def finish(self) -> bytes:
        """``[DONE]``."""
        return DONE

    def fail(self, error: StudioError) -> bytes:
        """The error as an event, which ends the stream."""
        return event(openai_error(error))


class CompletionsTranslation(PlainTranslation):
    """A completions call.

    ``echo`` is implemented here, because engines drop the prompt if token ids are requested as well. The engine does it
    if the prompt's log-probs are requested or the prompt is a list of ids.
    """

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body, completions_stream)
        self._echoes = _echoed(body)
        if self._echoes:
            self.engine_request = {name: value for name, value in body.items() if name != "echo"}

    def full_answer(self, answer: Mapping[str, Any]) -> Json:
        """The answer, with the prompt prepended if requested."""
        if not self._echoes:
            return dict(answer)
        choices = []
        for position, choice in enumerate(answer["choices"]):
            text = self._prompt(choice.get("index", position)) + maybe_text(choice.get("text"))
            choices.append({**choice, "text": text})
        return {**answer, "choices": choices}

    def stream(self, answer: Mapping[str, Any]) -> bytes:
        """The chunks of a whole answer."""
        return super().stream(self.full_answer(answer))

    def relay(self) -> PlainRelay:
        """For an engine that streams."""
        return EchoRelay(self.engine_request, self._prompt) if self._echoes else super().relay()

    def _prompt(self, index: Any) -> str:
        """The prompt of a choice."""
        n = self.engine_request.get("n")
        position = index // (n if isinstance(n, int) and n > 0 else 1) if isinstance(index, int) else 0
        return self._echoes[min(position, len(self._echoes) - 1)]


class EchoRelay(PlainRelay):
    """Prepends the prompt to the first text of each choice.

    Args:
        prompt: index of a choice -> its prompt.
    """

    def __init__(self, request: Mapping[str, Any], prompt: Callable[[Any], str]) -> None:
        super().__init__(request)
        self._prompt = prompt
        self._begun: set[Any] = set()

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        """The chunk, with the prompt in the first of each choice."""
        choices = chunk.get("choices")
        if isinstance(choices, list):
            chunk = {**chunk, "choices": [self._begin(c) if isinstance(c, dict) else c for c in choices]}
        return super().feed(chunk)

    def _begin(self, choice: Json) -> Json:
        index = choice.get("index", 0)
        if index in self._begun:
            return choice
        self._begun.add(index)
        return {**choice, "text": self._prompt(index) + maybe_text(choice.get("text"))}


def _echoed(body: Mapping[str, Any]) -> list[str]:
    """The prompts to prepend; empty if not requested or left to the engine."""
    if body.get("echo") is not True or body.get("logprobs") not in (None, False) or body.get("max_tokens") == 0:
        return []
    prompt = body.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) else prompt
    return prompts if isinstance(prompts, list) and all(isinstance(one, str) for one in prompts) else []


def event(data: Any) -> bytes:
    """One event with a JSON body."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def chat_stream(answer: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
    """The chunks of a chat answer: role, reasoning, content, tool calls, finish, usage if asked for, ``[DONE]``."""
    with_usage = wants_usage(request)
    head = _head(answer, "chat.completion.chunk", with_usage)
    parts: list[bytes] = []
    for position, choice in enumerate(answer["choices"]):
        index = choice.get("index", position)
        for number, delta in enumerate(_deltas(choice.get("message") or {})):
            piece: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            if number == 0:
                # Log-probs and ids belong to all tokens of the choice: they are sent once, with its first chunk.
                piece["logprobs"] = choice.get("logprobs")
                if "token_ids" in choice:
                    piece["token_ids"] = choice["token_ids"]
            chunk = {**head, "choices": [piece]}
            if not parts and "prompt_token_ids" in answer:
                chunk["prompt_token_ids"] = answer["prompt_token_ids"]
            parts.append(event(chunk))
        last = {
            **{name: value for name, value in choice.items() if name not in _CHOICE},
            "index": index,
            "delta": {},
            "logprobs": None,
            "finish_reason": choice.get("finish_reason") or "stop",
        }
        parts.append(event({**head, "choices": [last]}))
    if with_usage:
        parts.append(event({**head, "choices": [], "usage": answer.get("usage")}))
    parts.append(DONE)
    return b"".join(parts)


def completions_stream(answer: Mapping[str, Any], request: Mapping[str, Any]) -> bytes:
    """The chunks of a text completion: text, finish, usage if asked for, ``[DONE]``."""
    with_usage = wants_usage(request)
    head = _head(answer, "text_completion", with_usage)
    parts: list[bytes] = []
    for position, choice in enumerate(answer["choices"]):
        index = choice.get("index", position)
        piece = {key: value for key, value in choice.items() if key != "finish_reason"}
        parts.append(event({**head, "choices": [{**piece, "index": index, "finish_reason": None}]}))
        last = {
            "index": index,
            "text": "",
            "logprobs": None,
            "finish_reason": choice.get("finish_reason") or "stop",
        }
        parts.append(event({**head, "choices": [last]}))
    if with_usage:
        parts.append(event({**head, "choices": [], "usage": answer.get("usage")}))
    parts.append(DONE)
    return b"".join(parts)


def wants_usage(request: Mapping[str, Any]) -> bool:
    """Whether the agent asked for usage in its stream."""
    options = request.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = message.get("content")
    extras = {key: value for key, value in message.items() if key not in _WHOLE_ONLY and value is not None}
    yield {"role": message.get("role") or "assistant", "content": None if content is None else "", **extras}
    # Engines use one of two names for reasoning; the agent gets the engine's name.
    reasoning = {key: message[key] for key in ("reasoning", "reasoning_content") if message.get(key)}
    if reasoning:
        yield reasoning
    if content:
        yield {"content": content}
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call.get("function")
        if not isinstance(function, dict):
            yield {"tool_calls": [{**call, "index": index}]}
            continue
        opening = {**call, "index": index, "function": {**function, "arguments": ""}}
        yield {"tool_calls": [opening]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": function.get("arguments") or ""}}]}


def _head(answer: Mapping[str, Any], kind: str, with_usage: bool) -> dict[str, Any]:
    head: dict[str, Any] = {key: answer[key] for key in _ENVELOPE if key in answer}
    head["object"] = kind
    if with_usage:
        head["usage"] = None
    return head


def _open_chat(body: Mapping[str, Any], ids: ResponseIds, earlier: Sequence[Json]) -> PlainTranslation:
    return PlainTranslation(_with_system(body), chat_stream)


def _with_system(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """``developer`` messages as ``system``: chat templates skip unknown roles."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not any(_is_developer(message) for message in messages):
        return body
    return {**body, "messages": [{**m, "role": "system"} if _is_developer(m) else m for m in messages]}


def with_both_reasonings(messages: Any) -> Any:
    """Messages with reasoning under both field names: vLLM reads only ``reasoning``, others ``reasoning_content``.

    An engine drops the unknown field silently, and the next prompt would differ from what was sampled.
    """
    if not isinstance(messages, list) or not any(_is_half_named(message) for message in messages):
        return messages
    return [
        {**message, **dict.fromkeys(_REASONING, reasoning_of(message))} if _is_half_named(message) else message
        for message in messages
    ]


def _is_half_named(message: Any) -> bool:
    # Called for every message of every call, so the common case is checked first.
    return (
        isinstance(message, dict)
        and ("reasoning" in message) != ("reasoning_content" in message)
        and bool(reasoning_of(message))
    )


def _is_developer(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "developer"


def _open_completions(body: Mapping[str, Any], ids: ResponseIds, earlier: Sequence[Json]) -> CompletionsTranslation:
    return CompletionsTranslation(body)


CHAT: Final = Dialect("chat", "chat/completions", "chat", KEEP_ALIVE, openai_error, _open_chat)
COMPLETIONS: Final = Dialect("completions", "completions", "completions", KEEP_ALIVE, openai_error, _open_completions)
