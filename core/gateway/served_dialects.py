"""The four wire APIs as the gateway serves them: paths, fields added for engines and removed again, error bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from core import dialects
from core.dialects import BadRequest
from core.errors import EngineError, StudioError
from core.records import MAX_DEPTH, too_deep

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "ENGINE_DIALECTS",
    "MESSAGES",
    "RESPONSES",
    "BadRequest",
    "ServedDialect",
    "add_fields",
    "check_answer",
    "strip_fields",
]


@dataclass(frozen=True, slots=True)
class ServedDialect:
    """One wire API, towards agents and towards engines.

    Attributes:
        wire: the translation.
        relays: whether its events can be made from an engine's chunks as they arrive.
    """

    wire: dialects.Dialect
    relays: bool = True

    @property
    def name(self) -> str:
        """The name stored with the step."""
        return self.wire.name

    @property
    def path(self) -> str:
        """The path below ``/v1/``, the same for agents and engines."""
        return self.wire.path

    @property
    def translates(self) -> bool:
        """Whether the engine is called in another dialect than the agent's."""
        return self.wire.engine_dialect != self.wire.name

    def error(self, error: StudioError) -> dict[str, Any]:
        """An error body of this dialect."""
        return self.wire.error(error)


CHAT: Final = ServedDialect(dialects.CHAT)
COMPLETIONS: Final = ServedDialect(dialects.COMPLETIONS)
RESPONSES: Final = ServedDialect(dialects.RESPONSES)
MESSAGES: Final = ServedDialect(dialects.MESSAGES)

ENGINE_DIALECTS: Final[Mapping[str, ServedDialect]] = {"chat": CHAT, "completions": COMPLETIONS}
"""Dialects in which engines are called."""

_ANSWER_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "return_token_ids": ("token_ids", "response_token_ids", "prompt_token_ids"),
    "return_prompt_token_ids": ("prompt_token_ids",),
    "return_meta_info": ("meta_info",),
    "verbose": ("__verbose",),
}


def add_fields(body: Mapping[str, Any], ask: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Add request fields that the agent did not set.

    Returns:
        The engine's request and the names of the added fields.
    """
    added = [name for name in ask if body.get(name) is None or body[name] is False]
    return {**body, **{name: ask[name] for name in added}}, added


def strip_fields(answer: dict[str, Any], added: Sequence[str]) -> None:
    """Remove from an answer, in place, what only the gateway requested."""
    gone = answer_fields_of(added)
    for field in gone:
        answer.pop(field, None)
    for choice in answer["choices"]:
        for field in gone:
            choice.pop(field, None)
        # LiteLLM moves unknown fields into this one.
        if isinstance(specific := choice.get("provider_specific_fields"), dict):
            choice["provider_specific_fields"] = {k: v for k, v in specific.items() if k not in gone}
        if "logprobs" in added and "logprobs" in choice:
            choice["logprobs"] = None


def answer_fields_of(added: Sequence[str]) -> frozenset[str]:
    """Answer fields that an engine returns because of these added request fields."""
    return _answer_fields_of(tuple(added))


@lru_cache(64)
def _answer_fields_of(added: tuple[str, ...]) -> frozenset[str]:
    return frozenset(field for name in added for field in _ANSWER_FIELDS.get(name, ()))


def check_answer(answer: Any) -> dict[str, Any]:
    """The engine's parsed body, checked to be an answer.

    Raises:
        EngineError: it has no choices, or a message is nested deeper than an agent may send it back.
    """
    if isinstance(answer, dict):
        choices = answer.get("choices")
        if isinstance(choices, list) and choices and all(isinstance(choice, dict) for choice in choices):
            if any(map(_is_deep, choices)):
                raise EngineError(f"the engine's answer is nested more than {MAX_DEPTH} deep")
            return answer
        if isinstance(answer.get("error"), dict):
            raise EngineError(f"the engine answered with an error: {answer['error'].get('message')}")
    raise EngineError("the engine's answer has no choices", hint="is its base URL an OpenAI-compatible /v1?")


def _is_deep(choice: Mapping[str, Any]) -> bool:
    message = choice.get("message")
    parts = message.values() if isinstance(message, dict) else ()
    return any(isinstance(part, list | dict) and too_deep(part) for part in parts)
