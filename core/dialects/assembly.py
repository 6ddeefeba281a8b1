"""Assembles the chunks of a chat or completions stream into the full answer.

Nothing is added: ids and log-probs that a chunk lacks are missing in the answer, so the counts differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from core.dialects.base import Json

_FIRST_VALUE: Final = frozenset({"id", "created", "model", "prompt_token_ids"})
"""Fields whose first value counts; of other fields that do not grow, the last value counts."""
_OBJECTS: Final = {"chat.completion.chunk": "chat.completion"}
_GROWING: Final = frozenset({"token_ids", "response_token_ids"})
_FUNCTIONS: Final = frozenset({"function", "custom"})
_GROWING_TEXTS: Final = frozenset({"arguments", "input"})
"""Fields of a function that are kept in pieces until they are read."""
_VERBOSE: Final = "__verbose"
_FIELDS_OF_PROVIDERS: Final = "provider_specific_fields"
_THINKING: Final = "thinking_blocks"


class Assembly:
    """Assembles one answer. One choice per ``index``, ordered by index."""

    def __init__(self) -> None:
        self._head: Json = {}
        self._choices: dict[int, _Choice] = {}
        self._verbose: Json = {}
        self._verbose_tokens: list[Any] | None = None

    def feed(self, chunk: Mapping[str, Any]) -> None:
        """Add one parsed chunk; the chunk is not kept."""
        for name, value in chunk.items():
            if name == "choices":
                for choice in value if isinstance(value, list) else ():
                    if isinstance(choice, dict):
                        self._choice(choice).feed(choice)
            elif name == _VERBOSE and isinstance(value, dict):
                self._read_verbose(value)
            else:
                _keep(self._head, name, value)

    @property
    def begun(self) -> bool:
        """Whether there is a choice yet."""
        return bool(self._choices)

    @property
    def ended(self) -> bool:
        """Whether every choice has a ``finish_reason``."""
        return self.begun and all(choice.finish_reason is not None for choice in self._choices.values())

    def full_answer(self) -> Json:
        """The answer so far, in the shape of an answer that was not streamed."""
        head = dict(self._head)
        if "object" in head:
            head["object"] = _OBJECTS.get(str(head["object"]), head["object"])
        choices = [self._choices[index].full_choice() for index in sorted(self._choices)]
        # The answer has one __verbose, which belongs to a single choice.
        if self._verbose_tokens is not None and len(choices) == 1:
            self._verbose["tokens"] = self._verbose_tokens
        verbose = {_VERBOSE: self._verbose} if self._verbose else {}
        return {**head, "choices": choices, **verbose}

    def chunk(self) -> Json:
        """Everything received as one chunk."""
        return {**self._head, "choices": [self._choices[index].chunk() for index in sorted(self._choices)]}

    def _choice(self, choice: Json) -> _Choice:
        index = choice.get("index")
        index = index if isinstance(index, int) else 0
        if index not in self._choices:
            self._choices[index] = _Choice(index)
        return self._choices[index]

    def _read_verbose(self, verbose: Json) -> None:
        """llama.cpp: the last chunk's ``__verbose`` holds the requested fields, but tokens are in all of them."""
        tokens = verbose.get("tokens")
        if isinstance(tokens, list):
            self._verbose_tokens = self._verbose_tokens or []
            self._verbose_tokens.extend(tokens)
        self._verbose = {name: value for name, value in verbose.items() if name != "tokens"}


class _Choice:
    """One choice. Texts and lists are kept in pieces until they are read."""

    def __init__(self, index: int) -> None:
        self.finish_reason: Any = None
        self._index = index
        self._texts: dict[str, list[str]] = {}
        self._message: Json | None = None
        self._calls: dict[int, Json] = {}
        self._legacy: Json = {}
        self._logprobs: dict[str, Any] | None = None
        self._lists: dict[str, list[Any]] = {}
        self._rest: Json = {}

    def feed(self, choice: Json) -> None:
        for name, value in choice.items():
            if name == "delta":
                self._message = {} if self._message is None else self._message
                if isinstance(value, dict):
                    self._delta(value, self._message)
            elif name == "text" and isinstance(value, str):
                self._texts.setdefault("text", []).append(value)
            elif name == "logprobs":
                self._entries(value)
            elif name == "finish_reason":
                self.finish_reason = value if value is not None else self.finish_reason
            elif name in _GROWING and isinstance(value, list):
                self._lists.setdefault(name, []).extend(value)
            elif name != "index":
                _keep(self._rest, name, value)

    def full_choice(self) -> Json:
        content: Json = {}
        if self._message is not None:
            content["message"] = self._whole_message(self._message)
        else:
            content["text"] = "".join(self._texts.get("text", ()))
        return {
            "index": self._index,
            **content,
            "logprobs": self._logprobs,
            "finish_reason": self.finish_reason,
            **self._rest,
            **{name: list(ids) for name, ids in self._lists.items()},
        }

    def chunk(self) -> Json:
        choice = self.full_choice()
        message = choice.pop("message", None)
        if message is not None:
            calls = [{"index": index, **_joined(call)} for index, call in sorted(self._calls.items())]
            choice["delta"] = {**message, **({"tool_calls": calls} if calls else {})}
            if self._message is not None and "role" not in self._message:
                # Sent once: clients that join deltas would duplicate it.
                del choice["delta"]["role"]
        return choice

    def _delta(self, delta: Json, message: Json) -> None:
        for name, value in delta.items():
            if value is None:
                continue
            if name == "role":
                message.setdefault("role", value)
            elif name == "tool_calls":
                for position, piece in enumerate(value if isinstance(value, list) else ()):
                    if isinstance(piece, dict):
                        index = piece.get("index")
                        index = index if isinstance(index, int) else position
                        self._call(self._calls.setdefault(index, {}), piece)
            elif name == "function_call" and isinstance(value, dict):
                self._legacy["function"] = _function(self._legacy.get("function") or {}, value)
            elif isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            else:
                message[name] = _grown(message.get(name), value)

    def _whole_message(self, message: Json) -> Json:
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        content = texts.pop("content", "")
        full_message: Json = {"role": message.get("role") or "assistant"}
        filled = {name: text for name, text in texts.items() if text}
        rest = {name: value for name, value in message.items() if name not in full_message}
        if self._legacy:
            rest["function_call"] = _joined(self._legacy)["function"]
        # Missing content is null if there are other fields, as in answers that are not streamed.
        bare = bool(self._calls or filled or rest)
        full_message["content"] = content or (None if bare else "")
        full_message |= {**filled, **rest}
        if self._calls:
            full_message["tool_calls"] = [_joined(self._calls[index]) for index in sorted(self._calls)]
        for holder in (full_message, full_message.get(_FIELDS_OF_PROVIDERS)):
            if isinstance(holder, dict) and isinstance(pieces := holder.get(_THINKING), list):
                holder[_THINKING] = _thinking(pieces)
        return full_message

    def _call(self, call: Json, piece: Json) -> None:
        for name, value in piece.items():
            if name in _FUNCTIONS:
                if isinstance(value, dict):
                    call[name] = _function(call.get(name) or {}, value)
            elif name != "index" and value is not None:
                # The first value counts; engines may repeat it.
                call[name] = call.get(name) or value

    def _entries(self, logprobs: Any) -> None:
        """Log-probs of chat are entries, those of completions parallel lists; both are concatenated."""
        if not isinstance(logprobs, dict):
            return
        if self._logprobs is None:
            self._logprobs = {}
        for name, value in logprobs.items():
            held = self._logprobs.get(name)
            if isinstance(value, list):
                if isinstance(held, list):
                    held.extend(value)
                else:
                    self._logprobs[name] = [*value]
            elif held is None:
                self._logprobs[name] = value


def _keep(held: Json, name: str, value: Any) -> None:
    if held.get(name) is None or (value is not None and name not in _FIRST_VALUE):
        held[name] = value


def _grown(held: Any, value: Any) -> Any:
    """Lists are concatenated, also within an object; of other values the last one counts."""
    if isinstance(value, list):
        return [*held, *value] if isinstance(held, list) else list(value)
    if isinstance(value, dict):
        before = held if isinstance(held, dict) else {}
        return {**before, **{name: _grown(before.get(name), new) for name, new in value.items()}}
    return value


def _thinking(pieces: list[Any]) -> list[Any]:
    """Signed thinking: a block's text arrives in pieces, its signature with the last piece."""
    blocks: list[Any] = []
    open_block: Json | None = None
    for piece in pieces:
        if not isinstance(piece, dict) or piece.get("type") != "thinking":
            blocks.append(piece)
            open_block = None
            continue
        if open_block is None:
            open_block = {**piece, "thinking": piece.get("thinking") or ""}
            blocks.append(open_block)
        else:
            open_block |= {**piece, "thinking": open_block["thinking"] + (piece.get("thinking") or "")}
        if piece.get("signature"):
            open_block = None
    return blocks


def _function(held: Json, piece: Json) -> Json:
    """A function's name, and its arguments in pieces."""
    for name, value in piece.items():
        if name in _GROWING_TEXTS:
            spelled = value if isinstance(value, str) else orjson.dumps(value).decode() if value is not None else ""
            held.setdefault(name, []).append(spelled)
        elif value is not None:
            held[name] = held.get(name) or value
    return held


def _joined(call: Json) -> Json:
    """A call with its arguments joined to one text."""
    return {
        name: {key: "".join(part) if key in _GROWING_TEXTS else part for key, part in value.items()}
        if name in _FUNCTIONS
        else value
        for name, value in call.items()
    }
