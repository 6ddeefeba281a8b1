"""The script of a scripted engine: which request gets which reply, after which delay, and with which fault.

    {"model": "scripted-1", "seed": 0,
     "rules": [
       {"when": {"turn": 0, "has_tools": true},
        "reply": {"reasoning": "Look first.", "tool_calls": [{"name": "list_files", "arguments": {}}]}},
       {"when": {"last_contains": "report.md"}, "variants": [{"content": "Found it."}, {"content": "There."}]},
       {"when": {"turn": 3}, "fault": "status:503", "times": 1}],
     "default": {"content": "Done."}}

The first rule that matches is used. A rule with ``times`` is skipped after it was used that many times.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from core.errors import InvalidInput
from core.serving.faults import check_fault


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScriptedCall(_Form):
    """A tool call. ``arguments`` given as text are sent unchanged, so that malformed arguments can be scripted."""

    name: str
    arguments: dict[str, Any] | str = Field(default_factory=dict)


class Reply(_Form):
    """A reply. ``text`` gives the raw turn instead of its parts; ``n_tokens`` generates filler of that length."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ScriptedCall, ...] = ()
    text: str | None = None
    n_tokens: int | None = Field(default=None, ge=1)
    finish_reason: str | None = None


class When(_Form):
    """Conditions of a rule; all given ones must hold. ``turn`` is the number of assistant messages in the request."""

    turn: int | None = None
    min_turn: int | None = None
    contains: str | None = Field(default=None, description="found in any message (or the completions prompt)")
    last_contains: str | None = Field(default=None, description="found in the last message")
    has_tools: bool | None = None
    model: str | None = Field(default=None, description="glob")
    stream: bool | None = None
    route: str | None = Field(default=None, pattern="^(chat|completions)$")
    headers: dict[str, str] = Field(default_factory=dict, description="lower-case name -> glob")


class Rule(_Form):
    """Conditions, and the reply with its delays and fault. ``chunk_tokens``: sampled tokens per stream chunk."""

    when: When = When()
    reply: Reply = Reply()
    variants: tuple[Reply, ...] = ()
    delay_s: float = Field(default=0.0, ge=0)
    chunk_delay_s: float = Field(default=0.0, ge=0)
    chunk_tokens: int = Field(default=1, ge=1)
    fault: str | None = None
    times: int | None = Field(default=None, ge=1)

    @field_validator("fault")
    @classmethod
    def _known_fault(cls, value: str | None) -> str | None:
        if value is not None:
            check_fault(value)
        return value

    @property
    def replies(self) -> tuple[Reply, ...]:
        """The possible replies: the variants, or the single reply."""
        return self.variants or (self.reply,)


class Script(_Form):
    """A complete script. ``fast`` sends the same cached bytes for equivalent requests (for benchmarks)."""

    model: str = "scripted-1"
    seed: int = 0
    rules: tuple[Rule, ...] = ()
    default: Rule = Rule(reply=Reply(content="Done."))
    context_length: int = Field(default=1 << 20, ge=1)
    reasoning_parser: bool = True
    fast: bool = False
    log_size: int = Field(default=2000, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _default_is_a_reply(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("default"), dict):
            known = data["default"].keys() & Rule.model_fields.keys()
            if not known:
                data = {**data, "default": {"reply": data["default"]}}
        return data

    @classmethod
    def parse(cls, data: Any) -> Self:
        """Check a script.

        Raises:
            InvalidInput: ``field`` is the path of the first error.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "script"
            raise InvalidInput(f"script: {field}: {first['msg']}", field=field) from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a script file.

        Raises:
            InvalidInput: the file does not exist, or is not JSON or not a valid script.
        """
        try:
            return cls.parse(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise InvalidInput(f"script {path}: {error}", field="script") from error


@dataclass(frozen=True, slots=True)
class Match:
    """The rule for a request, its index (-1: the default), and the variant of each choice."""

    index: int
    rule: Rule
    variants: tuple[int, ...]

    def reply(self, choice: int) -> Reply:
        """The reply of a choice."""
        return self.rule.replies[self.variants[choice]]


class Matcher:
    """Finds the rule for a request, and counts how often each rule was used."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._used = [0] * len(script.rules)
        self._n_unnamed = 0

    def match(self, route: str, body: Mapping[str, Any], headers: Mapping[str, str], n: int) -> Match:
        """The first rule that matches the request, with a variant for each of its ``n`` choices."""
        for index, rule in enumerate(self.script.rules):
            if rule.times is not None and self._used[index] >= rule.times:
                continue
            if _fits(rule.when, route, body, headers):
                self._used[index] += 1
                return Match(index, rule, self._variants(rule, body, headers, n))
        rule = self.script.default
        return Match(-1, rule, self._variants(rule, body, headers, n))

    def _variants(self, rule: Rule, body: Mapping[str, Any], headers: Mapping[str, str], n: int) -> tuple[int, ...]:
        """Choose variants by a hash of the script's seed and the caller's identity.

        A trajectory therefore always gets the same variant, and trajectories of one prompt differ. The identity is the
        request's ``seed``, its ``X-Trajectory-Uid`` header or its ``user``. Without one, variants are used in turn.
        """
        n_variants = len(rule.replies)
        if n_variants == 1:
            return (0,) * n
        who = body.get("seed")
        who = headers.get("X-Trajectory-Uid") if who is None else who
        who = body.get("user") if who is None else who
        if who is None:
            start = self._n_unnamed
            self._n_unnamed += 1
        else:
            digest = hashlib.blake2b(f"{self.script.seed}/{who}".encode(), digest_size=8).digest()
            start = int.from_bytes(digest, "little")
        return tuple((start + i) % n_variants for i in range(n))


def _fits(when: When, route: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> bool:
    messages: Sequence[Any] = body.get("messages") or ()
    if when.route is not None and when.route != route:
        return False
    if when.turn is not None or when.min_turn is not None:
        turn = sum(1 for m in messages if isinstance(m, dict) and m.get("role") == "assistant")
        if when.turn not in (None, turn) or (when.min_turn is not None and turn < when.min_turn):
            return False
    if when.has_tools is not None and when.has_tools != bool(body.get("tools")):
        return False
    if when.stream is not None and when.stream != bool(body.get("stream")):
        return False
    if when.model is not None and not fnmatchcase(str(body.get("model")), when.model):
        return False
    if any(not fnmatchcase(headers.get(name, ""), glob) for name, glob in when.headers.items()):
        return False
    if when.contains is not None:
        texts = [_text(m) for m in messages] or [str(body.get("prompt"))]
        if not any(when.contains in text for text in texts):
            return False
    if when.last_contains is None:
        return True
    last = _text(messages[-1]) if messages else str(body.get("prompt"))
    return when.last_contains in last


def _text(message: Any) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(p.get("text", "")) if isinstance(p, dict) else str(p) for p in content)
    return ""
