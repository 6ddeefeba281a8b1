"""The wire dialects that agents speak: what to ask engines for, what to take out again, how errors look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.errors import EngineError, InvalidInput, StudioError, Unauthorized
from core.gateway.sse import chat_stream, completions_stream


class BadRequest(InvalidInput):
    """A body that is no request at all; agents know 400 for that."""

    http_status = 400


def openai_error(error: StudioError) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}``, and the hint where there is one."""
    invalid = isinstance(error, InvalidInput | Unauthorized)
    body: dict[str, Any] = {
        "message": error.message,
        "type": "invalid_request_error" if invalid else error.type,
        "param": error.field,
        "code": "invalid_api_key" if isinstance(error, Unauthorized) else error.type,
    }
    if error.hint is not None:
        body["hint"] = error.hint
    return {"error": body}


_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(error: StudioError) -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}}``."""
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    kind = _ANTHROPIC_TYPES.get(error.http_status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


@dataclass(frozen=True, slots=True)
class Dialect:
    """One wire dialect.

    Attributes:
        name: as stored with the step.
        path: below ``/v1/``, for agents and engines alike.
        error: a failure in this dialect's shape.
        ask: fields to add to a request so that the engine tells ids and log-probs, most telling first; the
            last one adds nothing.
        stream: whole answer and request -> the bytes of a correct event stream. None: not served.
    """

    name: str
    path: str
    error: Callable[[StudioError], dict[str, Any]]
    ask: Sequence[Mapping[str, Any]] = ()
    stream: Callable[[Mapping[str, Any], Mapping[str, Any]], bytes] | None = None


CHAT: Final = Dialect(
    "chat",
    "chat/completions",
    openai_error,
    ({"return_token_ids": True, "logprobs": True}, {"logprobs": True}, {}),
    chat_stream,
)
COMPLETIONS: Final = Dialect(
    "completions",
    "completions",
    openai_error,
    # Here logprobs is a number, and several engines read 0 as "none".
    ({"return_token_ids": True, "logprobs": 1}, {"logprobs": 1}, {}),
    completions_stream,
)
RESPONSES: Final = Dialect("responses", "responses", openai_error)
MESSAGES: Final = Dialect("messages", "messages", anthropic_error)

FLAVOUR_ASK: Final[Mapping[str, Mapping[str, Any]]] = {
    "sglang": {"return_meta_info": True, "return_prompt_token_ids": True},
}
"""What else to ask of an engine that names itself in ``GET models`` (``owned_by``)."""

_ASKED_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "return_token_ids": ("token_ids", "prompt_token_ids"),
    "return_prompt_token_ids": ("prompt_token_ids",),
    "return_meta_info": ("meta_info",),
}


def add_asked(body: Mapping[str, Any], ask: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Add the fields that the agent did not ask for itself.

    Returns:
        The engine's request and the names of what was added.
    """
    added = [name for name in ask if body.get(name) is None or body[name] is False]
    return {**body, **{name: ask[name] for name in added}}, added


def strip_asked(answer: dict[str, Any], added: Sequence[str]) -> None:
    """Take out of an answer what only the gateway asked for, in place: the agent sees what it would without us."""
    gone = {field for name in added for field in _ASKED_FIELDS.get(name, ())}
    for field in gone:
        answer.pop(field, None)
    for choice in answer["choices"]:
        for field in gone:
            choice.pop(field, None)
        # LiteLLM moves what it does not know into a drawer of its own.
        if isinstance(drawer := choice.get("provider_specific_fields"), dict):
            choice["provider_specific_fields"] = {k: v for k, v in drawer.items() if k not in gone}
        if "logprobs" in added and "logprobs" in choice:
            choice["logprobs"] = None


def check_answer(answer: Any) -> dict[str, Any]:
    """The engine's parsed body, if it is an answer.

    Raises:
        EngineError: it has no choices.
    """
    if isinstance(answer, dict):
        choices = answer.get("choices")
        if isinstance(choices, list) and choices and all(isinstance(choice, dict) for choice in choices):
            return answer
        if isinstance(answer.get("error"), dict):
            raise EngineError(f"the engine answered with an error: {answer['error'].get('message')}")
    raise EngineError("the engine's answer has no choices", hint="is its base URL an OpenAI-compatible /v1?")
