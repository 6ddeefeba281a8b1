"""The interface of a dialect: pure translation between an agent's API and OpenAI chat, the internal form.

No I/O here. The gateway sends ``Translation.engine_request`` to engines and the results of the other methods to agents;
ingest derives canonical messages and tools from a journal record with the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from core.errors import InvalidInput, StudioError

Json = dict[str, Any]


class BadRequest(InvalidInput):
    """A body that is not a valid request; HTTP status 400."""

    http_status = 400


@dataclass(frozen=True, slots=True)
class ResponseIds:
    """The parts of the ids of one response and its items.

    Attributes:
        step_uid: uid of the call's step.
        at: when the call began, UTC seconds since the epoch.
        mark: a journal position (``Journal.mark``) at or before the call's record, so that the record is found by the
            response's id; empty when no lookup is needed.
    """

    step_uid: str
    at: float = 0.0
    mark: str = ""


class Relay(Protocol):
    """Translates an engine's chat stream to the agent's events, chunk by chunk."""

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        """One parsed chunk of the engine's stream -> the agent's events, possibly none."""
        ...

    def finish(self) -> bytes:
        """The last events, after the engine's last chunk."""
        ...

    def fail(self, error: StudioError) -> bytes:
        """The last events of an interrupted stream, also before the first ``feed``."""
        ...


class Translation(Protocol):
    """One call: its request for the engine, and its answer for the agent."""

    @property
    def engine_request(self) -> Mapping[str, Any]:
        """The engine's request. Must not be changed."""
        ...

    @property
    def dropped(self) -> Sequence[str]:
        """Names of request fields and parts that are not sent to the engine."""
        ...

    @property
    def response_id(self) -> str | None:
        """The id in the agent's response; None if it is the engine's own."""
        ...

    def full_answer(self, answer: Mapping[str, Any]) -> Json:
        """A chat answer in the agent's dialect."""
        ...

    def stream(self, answer: Mapping[str, Any]) -> bytes:
        """A chat answer as the bytes of an event stream."""
        ...

    def relay(self) -> Relay:
        """A translator for an engine's stream."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One dialect.

    Attributes:
        name: stored with the step.
        path: below ``/v1/``.
        engine_dialect: the dialect in which engines are called.
        keep_alive: bytes that keep an opened stream open and have no meaning.
        error: makes an error body.
        open: request body, ids, earlier items (``responses`` only) -> the call's translation. Raises BadRequest, which
            names the invalid field.
    """

    name: str
    path: str
    engine_dialect: str
    keep_alive: bytes
    error: Callable[[StudioError], Json]
    open: Callable[[Mapping[str, Any], ResponseIds, Sequence[Json]], Translation]


@dataclass(slots=True)
class Dropped:
    """Collects the names of dropped fields, each once, in order."""

    names: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        """Add a name."""
        if name not in self.names:
            self.names.append(name)


def named_event(name: str, data: Any) -> bytes:
    """One event with a name and a JSON body."""
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


def objects(value: Any, name: str) -> list[Json]:
    """The value, which must be a list of objects. Raises BadRequest otherwise."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRequest(f"{name} must be a list of objects", field=name)
    return value


def text_of(value: Any, name: str) -> str:
    """The value, which must be a string. Raises BadRequest otherwise."""
    if not isinstance(value, str):
        raise BadRequest(f"{name} must be a string", field=name)
    return value


def first_choice(answer: Mapping[str, Any]) -> tuple[Json, Json]:
    """(choice, message) of a chat answer's first choice; empty if there is none."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    return choice, message if isinstance(message, dict) else {}


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning in a chat message or delta, under either of its names."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(text := message.get(name), str) and text:
            return text
    return ""


def maybe_text(value: Any) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def content_text(content: Any) -> str:
    """The text of chat content: a text, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return ""


def plain_content(parts: Sequence[Json], joiner: str = "\n") -> str | list[Json]:
    """Chat content: one string if all parts are text.

    Agents send the same text as a string or as a block, and chat templates read lists differently.
    """
    if all(part["type"] == "text" for part in parts):
        return joiner.join(part["text"] for part in parts)
    return list(parts)


def chat_request(body: Mapping[str, Any]) -> Json:
    """The body without None values."""
    return {name: value for name, value in body.items() if value is not None}
