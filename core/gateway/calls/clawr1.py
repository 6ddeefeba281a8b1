"""Claw-R1's black-box agents, which read tool calls from the answer's text.

Their trajectories begin at ``POST /init_trajectory`` and are known by their uid, so no state is needed. The record
holds the engine's own answer; only the agent's copy has the calls in its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson
from starlette.convertors import Convertor, register_url_convertor

from core import dialects
from core.dialects.base import Json, ResponseIds
from core.dialects.chat import PlainTranslation, chat_stream
from core.gateway.served_dialects import ServedDialect

UID_PREFIX: Final = "clawr1-"
CONVERTOR: Final = "clawr1_uid"


def tool_call_text(message: Mapping[str, Any]) -> Json:
    """A chat message with its tool calls written into the content, as Hermes and Qwen models sample them."""
    calls = message.get("tool_calls") or []
    content = message.get("content") or ""
    texts = [content] if content else []
    for call in calls:
        function = call.get("function") or {}
        name = orjson.dumps(function.get("name")).decode()
        texts.append(f'<tool_call>\n{{"name": {name}, "arguments": {function.get("arguments") or "{}"}}}\n</tool_call>')
    kept = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(texts)}


class _ToolsInText(PlainTranslation):
    def full_answer(self, answer: Mapping[str, Any]) -> Json:
        choices = [{**choice, "message": tool_call_text(choice.get("message") or {})} for choice in answer["choices"]]
        return {**answer, "choices": choices}

    def stream(self, answer: Mapping[str, Any]) -> bytes:
        return super().stream(self.full_answer(answer))


def _open(body: Mapping[str, Any], ids: ResponseIds, earlier: Sequence[Json]) -> PlainTranslation:
    return _ToolsInText(dialects.CHAT.open(body, ids, earlier).engine_request, chat_stream)


CHAT_TOOLS_IN_TEXT: Final = ServedDialect(replace(dialects.CHAT, open=_open), relays=False)


class _ClawR1Uid(Convertor[str]):
    regex = UID_PREFIX + "[^/]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


def clawr1_prefix() -> str:
    """The path prefix of Claw-R1's trajectories; routed before the general prefix."""
    register_url_convertor(CONVERTOR, _ClawR1Uid())
    return f"/{{trajectory_uid:{CONVERTOR}}}/{{prompt_uid}}/v1"
