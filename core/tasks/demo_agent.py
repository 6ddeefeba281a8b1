"""The demo agent: a tool loop with the OpenAI SDK on the files of one folder.

This file imports only the standard library and ``openai``, so that it can be copied as a starting point for other
agents. It does not depend on the studio: ``base_url`` can be any server with the chat API.

    result = run_agent(base_url="http://127.0.0.1:8100/v1", api_key=key, model="demo-1",
                       prompt="Sum the column ...", workspace=Path("work"))

As a program it needs the standard library alone: it works in the current folder, takes the arguments of ``run_agent``
as a JSON object on its input, and prints its messages, one JSON object a line.
"""

from __future__ import annotations

import io
import json
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessage

SYSTEM_PROMPT = """You work on files in a workspace folder. Look at files and write them with the tools.
All paths are relative to the workspace. Do only what the task asks for. When it is done, call finish."""


def _tool(name: str, description: str, **properties: str) -> dict[str, Any]:
    """A tool schema whose arguments are all required strings; ``properties`` maps name to description."""
    parameters = {
        "type": "object",
        "properties": {key: {"type": "string", "description": text} for key, text in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS = [
    _tool("list_files", "List every file in the workspace, one path and size in bytes per line."),
    _tool("read_file", "Return the text of a file.", path="Path of the file"),
    _tool(
        "write_file",
        "Write a file, replacing what it held.",
        path="Path of the file",
        content="The whole new text of the file",
    ),
    _tool("finish", "End the task.", summary="One sentence that says what was done"),
]


class ToolError(Exception):
    """A tool call failed. The error text is returned as the tool's result, so that the model can retry."""


class Workspace:
    """The only folder that the agent can access. Every path is resolved and must be inside it."""

    def __init__(self, root: Path, *, max_read_chars: int = 60_000) -> None:
        self.root = root.resolve()
        self.max_read_chars = max_read_chars

    def _resolve(self, path: str) -> Path:
        resolved = (self.root / path).resolve()
        if not resolved.is_relative_to(self.root):
            raise ToolError(f"{path} is outside the workspace")
        return resolved

    def list_files(self) -> str:
        """``path  bytes`` of every file, sorted."""
        files = sorted(path for path in self.root.rglob("*") if path.is_file())
        lines = [f"{path.relative_to(self.root)}  {path.stat().st_size}" for path in files]
        return "\n".join(lines) or "The workspace is empty."

    def read_file(self, path: str) -> str:
        """The text of a file, cut at ``max_read_chars`` with a note."""
        target = self._resolve(path)
        if not target.is_file():
            raise ToolError(f"{path} does not exist")
        try:
            text = target.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ToolError(f"{path} is not UTF-8 text") from None
        if len(text) <= self.max_read_chars:
            return text
        return f"{text[: self.max_read_chars]}\n[cut: the file has {len(text)} characters]"

    def write_file(self, path: str, content: str) -> str:
        """Write ``content`` to a file; missing folders are created."""
        target = self._resolve(path)
        if target.is_dir():
            raise ToolError(f"{path} is a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
        return f"Wrote {len(content)} characters to {path}."

    def call(self, name: str, arguments: str) -> str:
        """Execute one tool call; ``arguments`` is the model's JSON text. Errors are returned as ``error: ...``."""
        known = {tool["function"]["name"]: tool["function"]["parameters"]["required"] for tool in TOOLS}
        try:
            if name not in known:
                raise ToolError(f"there is no tool {name}; tools: {', '.join(known)}")
            values = json.loads(arguments or "{}")
            if not isinstance(values, dict) or set(values) != set(known[name]):
                raise ToolError(f"{name} takes exactly these arguments: {known[name]}")
            if not all(isinstance(value, str) for value in values.values()):
                raise ToolError(f"the arguments of {name} are strings")
            if name == "finish":
                return "Finished."
            result: str = getattr(self, name)(**values)
            return result
        except json.JSONDecodeError as error:
            return f"error: the arguments are not JSON ({error})"
        except (ToolError, OSError, ValueError) as error:
            return f"error: {error}"


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How one attempt ended.

    ``outcome``: ``finished`` (called finish), ``stopped`` (answered without a tool call), ``max_turns`` or
    ``interrupted`` (``should_stop`` returned true). ``answer``: the finish summary or the last text.
    """

    outcome: str
    n_turns: int
    answer: str


def run_agent(
    *,
    base_url: str,
    api_key: str,
    model: str,
    prompt: str,
    workspace: Path,
    max_turns: int = 10,
    max_tokens: int | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    tls: ssl.SSLContext | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> AgentResult:
    """Let ``model`` work on ``prompt`` in ``workspace`` until it finishes, stops or runs out of turns.

    Raises:
        openai.OpenAIError: the server refused, or could not be reached after the SDK's retries.
    """
    from openai import DefaultHttpxClient, OpenAI, omit

    http_client = None if tls is None else DefaultHttpxClient(verify=tls)
    with OpenAI(base_url=base_url, api_key=api_key, http_client=http_client) as client:

        def ask(messages: list[Any]) -> dict[str, Any]:
            completion = client.chat.completions.create(
                model=model,
                messages=messages,
                tools=TOOLS,  # type: ignore[arg-type]
                max_tokens=omit if max_tokens is None else max_tokens,
                temperature=omit if temperature is None else temperature,
                seed=omit if seed is None else seed,
            )
            return _as_sent(completion.choices[0].message)

        return work(ask, prompt=prompt, workspace=workspace, max_turns=max_turns, should_stop=should_stop)


def work(
    ask: Callable[[list[Any]], dict[str, Any]],
    *,
    prompt: str,
    workspace: Path,
    max_turns: int = 10,
    should_stop: Callable[[], bool] = lambda: False,
    note: Callable[[dict[str, Any]], None] = lambda _: None,
) -> AgentResult:
    """The tool loop. ``ask`` returns the assistant's message to a conversation; ``note`` gets every new message."""
    files = Workspace(workspace)
    messages: list[Any] = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": prompt}]
    answer = ""
    for turn in range(max_turns):
        if should_stop():
            return AgentResult("interrupted", turn, answer)
        message = ask(messages)
        messages.append(message)
        note(message)
        answer = message.get("content") or answer
        if not message.get("tool_calls"):
            return AgentResult("stopped", turn + 1, answer)
        for call in message["tool_calls"]:
            if call.get("type", "function") != "function":
                continue
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            result = files.call(name, arguments)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            note(messages[-1])
            if name == "finish" and not result.startswith("error:"):
                return AgentResult("finished", turn + 1, json.loads(arguments)["summary"])
    return AgentResult("max_turns", max_turns, answer)


def _as_sent(message: ChatCompletionMessage) -> dict[str, Any]:
    """The assistant message as the server sent it, so that the next prompt extends this one exactly."""
    return message.model_dump(exclude_unset=True, exclude_none=True)


RETRY_STATUS = frozenset({408, 429, 500, 502, 503, 504})
N_RETRIES = 2


def post(url: str, api_key: str, body: dict[str, Any], *, timeout_s: float = 600.0) -> dict[str, Any]:
    """POST a JSON body; the response's JSON. Retried twice, as OpenAI's SDK does.

    Raises:
        OSError: the server refused, or could not be reached; HTTPError has its answer.
    """
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    for attempt in range(N_RETRIES + 1):
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                answer: dict[str, Any] = json.loads(response.read())
                return answer
        except urllib.error.HTTPError as error:
            if attempt == N_RETRIES or error.code not in RETRY_STATUS:
                raise
        except OSError:
            if attempt == N_RETRIES:
                raise
        time.sleep(0.5 * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def main() -> int:
    """The agent as a program; 1 if the server refused or could not be reached."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    settings = json.load(sys.stdin)
    names = ("model", "max_tokens", "temperature", "seed")
    fixed = {name: settings[name] for name in names if settings.get(name) is not None}

    def ask(messages: list[Any]) -> dict[str, Any]:
        body = {**fixed, "messages": messages, "tools": TOOLS}
        answer = post(f"{settings['base_url']}/chat/completions", settings["api_key"], body)
        message: dict[str, Any] = answer["choices"][0]["message"]
        return {name: value for name, value in message.items() if value is not None}

    def note(message: dict[str, Any]) -> None:
        print(json.dumps(message, ensure_ascii=False), flush=True)

    try:
        result = work(
            ask, prompt=settings["prompt"], workspace=Path(), max_turns=settings.get("max_turns", 10), note=note
        )
    except urllib.error.HTTPError as error:
        print(f"the server refused: {error.code} {error.read().decode(errors='replace')[:2000]}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"the server did not answer: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"outcome": result.outcome, "n_turns": result.n_turns, "answer": result.answer}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
