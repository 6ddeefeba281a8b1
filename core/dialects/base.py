"""What a wire dialect is: pure translation between what an agent speaks and OpenAI chat, the form used inside.

No I/O here. The gateway asks engines with what ``Translation.engine_request`` says and sends agents what the others
return; ingest derives canonical messages and tools from a journal record by the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from core.errors import InvalidInput, StudioError

Json = dict[str, Any]


class BadRequest(InvalidInput):
    """A body that is no request at all; agents know 400 for that."""

    http_status = 400


@dataclass(frozen=True, slots=True)
class ResponseIds:
    """What the ids of one response and its items are built from.

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
    """An engine's chat stream on its way to the agent, chunk by chunk."""

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        """One parsed chunk of the engine's stream -> the events that it makes, possibly none."""
        ...

    def finish(self) -> bytes:
        """The last events, after the engine's last chunk."""
        ...

    def fail(self, error: StudioError) -> bytes:
        """The last events of a stream that broke; also right before the first ``feed``."""
        ...


class Translation(Protocol):
    """One call: its request in the engine's words, and its answer in the agent's."""

    @property
    def engine_request(self) -> Mapping[str, Any]:
        """The engine's request. Not to be changed by who reads it."""
        ...

    @property
    def dropped(self) -> Sequence[str]:
        """Names of request fields and parts that are not sent to the engine."""
        ...

    @property
    def response_id(self) -> str | None:
        """The id that the agent sees; None where it sees the engine's own."""
        ...

    def whole(self, answer: Mapping[str, Any]) -> Json:
        """A whole chat answer as the agent's dialect says it."""
        ...

    def stream(self, answer: Mapping[str, Any]) -> bytes:
        """A whole chat answer as the bytes of a correct event stream."""
        ...

    def relay(self) -> Relay:
        """For an engine that streams."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire dialect.

    Attributes:
        name: as stored with the step.
        path: below ``/v1/``.
        engine_dialect: what engines are asked in.
        keep_alive: bytes that keep an opened stream open and mean nothing.
        error: a failure in this dialect's shape.
        open: request body, names, earlier items (``responses`` only) -> the call's translation. Raises
            BadRequest naming the field that does not fit.
    """

    name: str
    path: str
    engine_dialect: str
    keep_alive: bytes
    error: Callable[[StudioError], Json]
    open: Callable[[Mapping[str, Any], ResponseIds, Sequence[Json]], Translation]


@dataclass(slots=True)
class Dropped:
    """Collects the names of what a translation leaves out, each once, in order."""

    names: list[str] = field(default_factory=list)

    def add(self, name: str) -> None:
        """Note one."""
        if name not in self.names:
            self.names.append(name)


def named_event(name: str, data: Any) -> bytes:
    """One event with a name and a JSON body."""
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"


def objects(value: Any, name: str) -> list[Json]:
    """A list of objects. BadRequest when it is none."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRequest(f"{name} must be a list of objects", field=name)
    return value


def text_of(value: Any, name: str) -> str:
    """A text. BadRequest when it is none."""
    if not isinstance(value, str):
        raise BadRequest(f"{name} must be a string", field=name)
    return value


def first_choice(answer: Mapping[str, Any]) -> tuple[Json, Json]:
    """(choice, message) of a chat answer's first choice; empty where there is none."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    return choice, message if isinstance(message, dict) else {}


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The thinking in a chat message or delta, whichever way the engine names it."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(text := message.get(name), str) and text:
            return text
    return ""


def maybe_text(value: Any) -> str:
    """A text that an engine should have given; nothing where it gave something else."""
    return value if isinstance(value, str) else ""


def content_text(content: Any) -> str:
    """The text of chat content: a text, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return ""


def plain_content(parts: Sequence[Json], joiner: str = "\n") -> str | list[Json]:
    """Chat content: one text where the parts are texts only.

    Agents send the same text now as a string and now as a block, and templates differ in how they read lists.
    """
    if all(part["type"] == "text" for part in parts):
        return joiner.join(part["text"] for part in parts)
    return list(parts)


def chat_request(body: Mapping[str, Any]) -> Json:
    """Without the fields that say nothing."""
    return {name: value for name, value in body.items() if value is not None}
