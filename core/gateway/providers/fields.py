"""Which fields of a request reach a hosted provider, and as what.

LiteLLM leaves out what it takes to be unknown there and gives other names to the rest, unsaid.
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
"""Fields of the OpenAI API, by dialect: these become LiteLLM's arguments."""

_ASKED: Final = frozenset({"messages", "prompt"})
_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
"""Stands for tools of any number and size: what they are does not matter to whether they are sent."""
_MAX_REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a request's fields.

    Attributes:
        dropped: names that the provider is not given, in order.
        renamed: name -> what it is sent as instead, where that is not its own name: ``{"seed": ["random_seed"]}``.
        extra: what LiteLLM sends in ``extra_body``. A caller's own replaces it there, so it has to be in it.
    """

    dropped: Sequence[str]
    renamed: Mapping[str, Sequence[str]]
    extra: Mapping[str, Any] = field(default_factory=dict)


class SentFields:
    """What LiteLLM makes of a request, found out by asking it with and without each field."""

    def __init__(self) -> None:
        self._known: LRUCache[bytes, Sent] = LRUCache(_MAX_REMEMBERED)

    def look(self, litellm: Any, model: str, dialect: str, arguments: Mapping[str, Any]) -> Sent:
        """What becomes of these fields.

        Args:
            arguments: fields of ``FIELDS`` and their values.
        """
        asked = {name: value for name, value in arguments.items() if name not in _ASKED and value is not None}
        if asked.get("tools"):
            asked["tools"] = [_TOOL]
        key = orjson.dumps([model, dialect, asked], option=orjson.OPT_SORT_KEYS)
        sent = self._known.get(key)
        if sent is None:
            sent = self._known[key] = _found_out(litellm, model, dialect, asked)
        return sent


def _found_out(litellm: Any, model: str, dialect: str, asked: Mapping[str, Any]) -> Sent:
    unsupported = _unsupported(litellm, model, asked)
    if dialect != "chat":
        return Sent(unsupported, {})
    try:
        plain, provider, *_ = litellm.get_llm_provider(model=model)

        def sent(fields: Mapping[str, Any]) -> dict[str, Any]:
            params = litellm.utils.get_optional_params(
                model=plain, custom_llm_provider=provider, drop_params=True, messages=[], **fields
            )
            return {**params, "extra_body": params.get("extra_body") or {}}

        everything = sent(asked)
        because = {name: _difference(everything, sent({k: v for k, v in asked.items() if k != name})) for name in asked}
    except Exception:
        # What LiteLLM does not want it tells by raising anything: the call itself will say so, with the reason.
        return Sent(unsupported, {})
    renamed = {name: others for name, others in sorted(because.items()) if others and name not in others}
    return Sent(sorted(name for name, others in because.items() if not others), renamed, everything["extra_body"])


def _difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names that are not the same in both, those in ``extra_body`` included: they are sent like the others."""
    one, other = {**one, **one["extra_body"]}, {**other, **other["extra_body"]}
    names = (one.keys() | other.keys()) - {"extra_body"}
    return sorted(name for name in names if (name in one, one.get(name)) != (name in other, other.get(name)))


def _unsupported(litellm: Any, model: str, asked: Mapping[str, Any]) -> list[str]:
    """By LiteLLM's list of what a provider knows, which leaves out what only some of its models do."""
    supported = set(litellm.get_supported_openai_params(model=model) or ())
    return sorted(name for name in asked if supported and name not in supported)
