"""Which fields of a request reach a hosted provider: LiteLLM leaves out what it takes to be unknown there, unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

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


class SentFields:
    """What of a request LiteLLM does not send on, found out by asking it with and without each field."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[str]] = {}

    def dropped(self, litellm: Any, model: str, dialect: str, arguments: Mapping[str, Any]) -> list[str]:
        """Names of fields that the provider is not given, in order.

        Args:
            arguments: fields of ``FIELDS`` and their values.
        """
        asked = {name: value for name, value in arguments.items() if name not in _ASKED and value is not None}
        if asked.get("tools"):
            asked["tools"] = [_TOOL]
        key = orjson.dumps([model, dialect, asked], option=orjson.OPT_SORT_KEYS)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MAX_REMEMBERED:
                self._known.clear()
            found = self._known[key] = _left_out(litellm, model, dialect, asked)
        return found


def _left_out(litellm: Any, model: str, dialect: str, asked: Mapping[str, Any]) -> list[str]:
    unsupported = _unsupported(litellm, model, asked)
    if dialect != "chat":
        return unsupported
    try:
        name, provider, *_ = litellm.get_llm_provider(model=model)

        def sent(fields: Mapping[str, Any]) -> Any:
            return litellm.utils.get_optional_params(
                model=name, custom_llm_provider=provider, drop_params=True, messages=[], **fields
            )

        everything = sent(asked)
        return sorted(field for field in asked if sent({k: v for k, v in asked.items() if k != field}) == everything)
    except Exception:
        # What LiteLLM does not want it tells by raising anything: the call itself will say so, with the reason.
        return unsupported


def _unsupported(litellm: Any, model: str, asked: Mapping[str, Any]) -> list[str]:
    """By LiteLLM's list of what a provider knows, which leaves out what only some of its models do."""
    supported = set(litellm.get_supported_openai_params(model=model) or ())
    return sorted(field for field in asked if supported and field not in supported)
