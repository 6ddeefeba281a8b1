"""Tools of the Responses API as chat functions, and their calls as items again.

Every tool that the agent runs can be a function: custom tools take one text, namespaces become a prefix, the local
shell has a fixed schema. Tools that the provider runs are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.dialects.base import BadRequest, Dropped, Json, chat_request, objects, text_of
from core.dialects.calls import ToolCall, parsed_arguments

CUSTOM_INPUT: Final = "input"
"""The one argument of a custom tool's function."""
LOCAL_SHELL: Final = "local_shell"

_LOCAL_SHELL_FUNCTION: Final[Json] = {
    "name": LOCAL_SHELL,
    "description": "Runs a command in the local shell and returns its output.",
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "description": "program and arguments"},
            "working_directory": {"type": "string"},
            "timeout_ms": {"type": "integer"},
        },
        "required": ["command"],
    },
}


@dataclass(frozen=True, slots=True)
class _Tool:
    kind: str
    name: str
    namespace: str | None = None


class ToolNames:
    """The agent's tool for each chat function."""

    def __init__(self) -> None:
        self._tools: dict[str, _Tool] = {}

    def to_chat(self, tools: Any, dropped: Dropped) -> list[Json] | None:
        """The request's tools as chat tools."""
        if tools is None:
            return None
        functions: list[Json | None] = []
        for tool in objects(tools, "tools"):
            if tool.get("type") == "namespace":
                inner = objects(tool.get("tools"), "tools.tools")
                functions += [self._tool(one, dropped, text_of(tool.get("name"), "tools.name")) for one in inner]
            else:
                functions.append(self._tool(tool, dropped, None))
        known = [{"type": "function", "function": function} for function in functions if function]
        return known or None

    def choice(self, choice: Any, functions: list[Json] | None, dropped: Dropped) -> tuple[Any, list[Json] | None]:
        """(chat tool_choice, the functions allowed by it)."""
        if choice is None or isinstance(choice, str):
            return choice, functions
        if not isinstance(choice, dict):
            raise BadRequest("tool_choice must be a string or an object", field="tool_choice")
        kind = choice.get("type")
        if kind in ("function", "custom"):
            name = self.flat_name(text_of(choice.get("name"), "tool_choice.name"), choice.get("namespace"))
            return {"type": "function", "function": {"name": name}}, functions
        if kind == "allowed_tools":
            named = {str(tool.get("name")) for tool in objects(choice.get("tools"), "tool_choice.tools")}
            allowed = [f for f in functions or () if self._tools[f["function"]["name"]].name in named]
            return ("required" if choice.get("mode") == "required" else "auto"), allowed or None
        dropped.add(f"tool_choice.{kind}")
        return None, functions

    def flat_name(self, name: str, namespace: Any = None) -> str:
        """The chat function's name."""
        if not isinstance(namespace, str) or not namespace:
            return name
        return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"

    def item(self, call: ToolCall, item_id: str) -> Json:
        """A call as an output item; ``item_id`` lacks the prefix of the item's type."""
        tool = self._tools.get(call.name) or _Tool("function", call.name)
        space: Json = {} if tool.namespace is None else {"namespace": tool.namespace}
        if tool.kind == "custom":
            fields = parsed_arguments(call.arguments)
            text = fields.get(CUSTOM_INPUT) if fields is not None else None
            return {
                "id": f"ctc_{item_id}",
                "type": "custom_tool_call",
                "status": "completed",
                "call_id": call.id,
                "name": tool.name,
                **space,
                "input": text if isinstance(text, str) else call.arguments,
            }
        if tool.kind == LOCAL_SHELL and (shell := _shell_action(call.arguments)) is not None:
            return {
                "id": f"lsh_{item_id}",
                "type": "local_shell_call",
                "status": "completed",
                "call_id": call.id,
                "action": shell,
            }
        return {
            "id": f"fc_{item_id}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": tool.name,
            **space,
            "arguments": call.arguments,
        }

    def chat_call(self, item: Mapping[str, Any]) -> Json:
        """A call item of the input as a chat tool call; the inverse of ``item``."""
        kind = item.get("type")
        if kind == "local_shell_call":
            action = item.get("action")
            action = action if isinstance(action, dict) else {}
            fields = {key: action[key] for key in ("command", "working_directory", "timeout_ms") if action.get(key)}
            name, arguments = LOCAL_SHELL, json.dumps(fields, ensure_ascii=False)
        elif kind == "custom_tool_call":
            name = self.flat_name(text_of(item.get("name"), "input.name"), item.get("namespace"))
            arguments = json.dumps({CUSTOM_INPUT: text_of(item.get("input"), "input.input")}, ensure_ascii=False)
        else:
            name = self.flat_name(text_of(item.get("name"), "input.name"), item.get("namespace"))
            arguments = text_of(item.get("arguments"), "input.arguments")
        call_id = item.get("call_id") or item.get("id")
        return {
            "id": text_of(call_id, "input.call_id"),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _tool(self, tool: Json, dropped: Dropped, namespace: str | None) -> Json | None:
        kind = tool.get("type")
        if kind == LOCAL_SHELL:
            self._tools[LOCAL_SHELL] = _Tool(LOCAL_SHELL, LOCAL_SHELL)
            return dict(_LOCAL_SHELL_FUNCTION)
        if kind not in ("function", "custom"):
            dropped.add(f"tools.{kind}")
            return None
        name = text_of(tool.get("name"), "tools.name")
        flat = self.flat_name(name, namespace)
        self._tools[flat] = _Tool(kind, name, namespace)
        if kind == "custom":
            return {"name": flat, "description": _custom_description(tool), "parameters": _CUSTOM_PARAMETERS}
        details = {key: tool.get(key) for key in ("description", "parameters", "strict")}
        return chat_request({"name": flat, **details})


_CUSTOM_PARAMETERS: Final[Json] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "the tool's whole input, as it is"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


def _custom_description(tool: Json) -> str:
    description = str(tool.get("description") or "")
    form = tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        grammar = f"The input must match this {form.get('syntax')} grammar:\n{form.get('definition')}"
        return f"{description}\n\n{grammar}" if description else grammar
    return description


def _shell_action(arguments: str) -> Json | None:
    fields = parsed_arguments(arguments)
    command = fields.get("command") if fields is not None else None
    if fields is None or not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        return None
    options = {key: fields[key] for key in ("working_directory", "timeout_ms") if fields.get(key)}
    return {"type": "exec", "command": command, "env": {}, **options}
