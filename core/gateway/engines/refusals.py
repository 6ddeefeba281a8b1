"""Classifies refusals of engines: caused by the agent's request, or by fields that the gateway added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.dialects.errors import engine_refusal, prompt_too_long
from core.gateway.engines.response_bodies import maybe_json

REFUSALS: Final = frozenset({400, 422})


def is_about_the_request(status: int, raw: bytes, added: Sequence[str]) -> bool:
    """Whether a refusal concerns the agent's own request, so that sending fewer extra fields does not help.

    Args:
        added: names of the fields that the gateway added.
    """
    body = maybe_json(raw)
    return isinstance(body, dict) and (foreign_fields(body, added) or is_too_long(status, body))


def is_too_long(status: int, body: Mapping[str, Any]) -> bool:
    """Whether the refusal says that prompt and answer exceed the model's context."""
    return status in REFUSALS and prompt_too_long(engine_refusal(status, body))


def foreign_fields(body: Any, added: Sequence[str]) -> bool:
    """Whether a refusal names request fields, and none of ``added``.

    OpenAI's shape names a field as ``error.param``, FastAPI's as ``detail[].loc``.
    """
    if not isinstance(body, Mapping):
        return False
    error, detail = body.get("error"), body.get("detail")
    named = [error.get("param")] if isinstance(error, Mapping) else []
    named += [_field(entry.get("loc")) for entry in _entries(detail)]
    named += [_field(entry.get("loc")) for entry in _entries(error)]
    fields = [name for name in named if isinstance(name, str) and name]
    return bool(fields) and not any(name.split(".")[0] in added for name in fields)


def _entries(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _field(place: Any) -> Any:
    """The field of a location such as ``["body", "top_k"]``."""
    names = [name for name in place if name != "body"] if isinstance(place, list) else []
    return names[0] if names else None
