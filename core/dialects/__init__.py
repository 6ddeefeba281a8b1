"""The four wire APIs of agents, translated from and to OpenAI chat by pure functions, one file per API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.dialects.base import BadRequest, Dialect, Json, Relay, ResponseIds, Translation
from core.dialects.chat import CHAT, COMPLETIONS
from core.dialects.messages import MESSAGES
from core.dialects.native import chat_answer, native_relay, native_stream
from core.dialects.responses import RESPONSES

__all__ = [
    "CHAT",
    "COMPLETIONS",
    "DIALECTS",
    "MESSAGES",
    "RESPONSES",
    "BadRequest",
    "Dialect",
    "Json",
    "Relay",
    "ResponseIds",
    "Translation",
    "canonical_request",
    "chat_answer",
    "native_relay",
    "native_stream",
]

DIALECTS: Final[Mapping[str, Dialect]] = {dialect.name: dialect for dialect in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)}
"""All dialects by name."""


def canonical_request(dialect: str, request: Mapping[str, Any], items: Sequence[Json] = ()) -> Mapping[str, Any]:
    """A recorded request in the dialect of engines: chat, or completions unchanged.

    Args:
        items: the record's ``input_items``, if any.

    Raises:
        BadRequest: a body that does not fit its dialect.
    """
    known = DIALECTS.get(dialect)
    if known is None:
        return request
    return known.open(request, ResponseIds(""), items).engine_request
