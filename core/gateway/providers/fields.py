"""Which fields of a request LiteLLM sends to a provider, and under which names.

LiteLLM drops and renames fields without reporting it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from cachetools import LRUCache

_CHAT = """
messages frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens metadata
modalities n parallel_tool_calls presence_penalty reasoning_effort response_format seed service_tier stop store
temperature tool_choice tools top_logprobs top_p user verbosity web_search_options
"""
_COMPLETIONS = """
prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop suffix
temperature top_p user
"""
FIELDS: Final = {"chat": frozenset(_CHAT.split()), "completions": frozenset(_COMPLETIONS.split())}
"""Fields of the OpenAI API by dialect; these become LiteLLM's arguments."""

_CONTENT_FIELDS: Final = frozenset({"messages", "prompt"})
_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
"""Stands for any tools, because their contents do not decide whether they are sent."""
_MAX_REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class FieldUse:
    """What LiteLLM does with a request's fields.

    Attributes:
        dropped: names of the fields that are not sent, in order.
        renamed: name -> the names it is sent as, if not its own: ``{"seed": ["random_seed"]}``.
        extra: LiteLLM's own ``extra_body``. A caller's replaces it, so it must be merged into the caller's.
    """

    dropped: Sequence[str]
    renamed: Mapping[str, Sequence[str]]
    extra: Mapping[str, Any] = field(default_factory=dict)


class FieldExaminer:
    """Finds out what LiteLLM sends, by comparing its output with and without each field."""

    def __init__(self) -> None:
        self._known: LRUCache[bytes, FieldUse] = LRUCache(_MAX_REMEMBERED)

    def examine(self, litellm: Any, model: str, dialect: str, arguments: Mapping[str, Any]) -> FieldUse:
        """What LiteLLM does with these fields.

        Args:
            arguments: fields of ``FIELDS`` and their values.
        """
        fields = {name: value for name, value in arguments.items() if name not in _CONTENT_FIELDS and value is not None}
        if fields.get("tools"):
            fields["tools"] = [_TOOL]
        key = orjson.dumps([model, dialect, fields], option=orjson.OPT_SORT_KEYS)
        sent = self._known.get(key)
        if sent is None:
            sent = self._known[key] = _compare(litellm, model, dialect, fields)
        return sent


def _compare(litellm: Any, model: str, dialect: str, requested: Mapping[str, Any]) -> FieldUse:
    unsupported = _unsupported(litellm, model, requested)
    if dialect != "chat":
        return FieldUse(unsupported, {})
    try:
        plain, provider, *_ = litellm.get_llm_provider(model=model)

        def sent(fields: Mapping[str, Any]) -> dict[str, Any]:
            params = litellm.utils.get_optional_params(
                model=plain, custom_llm_provider=provider, drop_params=True, messages=[], **fields
            )
            return {**params, "extra_body": params.get("extra_body") or {}}

        everything = sent(requested)
        because = {
            name: _difference(everything, sent({k: v for k, v in requested.items() if k != name})) for name in requested
        }
    except Exception:
        # LiteLLM raises errors of any type for fields it refuses; the call itself reports the reason.
        return FieldUse(unsupported, {})
    renamed = {name: others for name, others in sorted(because.items()) if others and name not in others}
    return FieldUse(sorted(name for name, others in because.items() if not others), renamed, everything["extra_body"])


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names that differ between the two, fields of ``extra_body`` included."""
    one, other = {**one, **one["extra_body"]}, {**other, **other["extra_body"]}
    names = (one.keys() | other.keys()) - {"extra_body"}
    return sorted(name for name in names if (name in one, one.get(name)) != (name in other, other.get(name)))


def _unsupported(litellm: Any, model: str, requested: Mapping[str, Any]) -> list[str]:
    """The fields that LiteLLM's list for the provider lacks; fields that only some models support may be missing
    there.
    """
    supported = set(litellm.get_supported_openai_params(model=model) or ())
    return sorted(name for name in requested if supported and name not in supported)
