"""Constrained decoding with llguidance: JSON, JSON of a schema, or a tool call.

The mask affects which token is drawn, like temperature and penalties. Reported log-probs are those of the unmodified
logits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.errors import InvalidInput
from core.serving.parsing import CALL, END_CALL
from core.serving.tokenizer import TOKENIZER_FILE, ChatTokenizer

# The white space of chat templates. With free white space, a small model may generate blanks without end.
_SPELLING: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def answer_grammar(response_format: Any) -> str | None:
    """The grammar of a ``response_format``; None if any text is allowed.

    Raises:
        InvalidInput: the format is unknown, or has no schema.
    """
    if response_format is None:
        return None
    form = response_format if isinstance(response_format, dict) else {}
    kind = form.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return _json({"type": "object"})
    json_schema = form.get("json_schema")
    schema = json_schema.get("schema") if isinstance(json_schema, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise InvalidInput(
            "response_format must be text, json_object or json_schema with a schema", field="response_format"
        )
    return _json(schema)


def forced_tools(tool_choice: Any, tools: Sequence[Any]) -> tuple[str, ...]:
    """Names of the tools of which one must be called; empty if the model may choose.

    Raises:
        InvalidInput: ``tool_choice`` is unknown, or names a tool that the request lacks.
    """
    if tool_choice in (None, "auto", "none"):
        return ()
    names = [str(_function(tool).get("name")) for tool in tools]
    if tool_choice == "required" and names:
        return tuple(names)
    named = _function(tool_choice).get("name")
    if named not in names:
        raise InvalidInput(
            f"tool_choice {tool_choice!r} names no tool of this request",
            field="tool_choice",
            hint="auto, none, required, or {type: function, function: {name}}",
        )
    return (str(named),)


def call_grammar(names: Sequence[str], tools: Sequence[Any]) -> str:
    """The grammar of a call of one of these tools; arguments must match the tool's parameter schema."""
    from llguidance import LLMatcher

    rules, alternatives = [], []
    for number, tool in enumerate(tools):
        function = _function(tool)
        if function.get("name") not in names:
            continue
        schema = {**(function.get("parameters") or {"type": "object"}), "x-guidance": _SPELLING}
        head = json.dumps(f'{json.dumps(function["name"], ensure_ascii=False)}, "arguments": ', ensure_ascii=False)
        alternatives.append(f"call{number}")
        rules += [f"call{number}: {head} arguments{number}", f"arguments{number}: %json {json.dumps(schema)}"]
    begin, end = json.dumps('\n{"name": '), json.dumps("}\n")
    start = f"start: {CALL} {begin} ({' | '.join(alternatives)}) {end} {END_CALL}"
    return str(LLMatcher.grammar_from_lark("\n".join([start, *rules])))


class Guides:
    """Creates ``Guide`` objects for one tokenizer. The vocabulary is loaded when the first is created."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        self._vocabulary: Any = None

    def guide(self, grammar: str) -> Guide:
        """A guide at the beginning of an answer. Raises InvalidInput if the grammar can't be compiled."""
        from llguidance import LLMatcher, LLTokenizer

        known = self._tokenizer
        if self._vocabulary is None:
            path = str(known.directory / TOKENIZER_FILE)
            self._vocabulary = LLTokenizer(path, n_vocab=known.n_vocab, eos_token=list(known.end_ids))
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0)
        if matcher.is_error():
            raise InvalidInput(f"the schema can't be held to: {matcher.get_error()}", field="response_format")
        return Guide(matcher, known)


class Guide:
    """The state of one answer in its grammar."""

    def __init__(self, matcher: Any, tokenizer: ChatTokenizer) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer

    def allowed(self) -> Any:
        """Which tokens may come next, bool [n_vocab]; includes the end tokens when the answer may end."""
        import llguidance.numpy
        import numpy as np

        bits = llguidance.numpy.allocate_token_bitmask(1, self._tokenizer.n_vocab)
        llguidance.numpy.fill_next_token_bitmask(self._matcher, bits, 0)
        return np.unpackbits(bits.view(np.uint8), bitorder="little")[: self._tokenizer.n_vocab].astype(bool)

    def take(self, token_id: int) -> None:
        """Advance by an allowed token."""
        self._matcher.consume_token(token_id)

    def fits(self, text: str) -> bool:
        """Whether ``text`` is a complete answer. The guide can't be used afterwards."""
        ids = self._tokenizer.encode(text)
        return self._matcher.try_consume_tokens(ids) == len(ids) and bool(self._matcher.is_accepting())


def _json(schema: Mapping[str, Any]) -> str:
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_json_schema(dict(schema), defaults=_SPELLING))


def _function(tool: Any) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    return function if isinstance(function, dict) else {}
