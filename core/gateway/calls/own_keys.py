"""Removes the service's own keys from engine answers, also when a key is split over several chunks.

Keys that the agent presented stay. The tokens of an answer that contained a key spell it, so they are removed as well,
and the step says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from core.dialects import Json
from core.scrub import MIN_SECRET_CHARS, SCRUBBED, scrubbed

TOKENS_REMOVED: Final = "response tokens (they spell a key of the service)"
"""The entry of ``metadata.dropped_fields`` for such an answer."""
_TOKEN_FIELDS: Final = frozenset(
    {
        "completion_token_ids",
        "logprobs",
        "output_token_logprobs",
        "prompt_logprobs",
        "response_ids",
        "token_ids",
        "tokens",
    }
)
_TEXT_FIELDS: Final = frozenset(
    {"arguments", "content", "partial_json", "reasoning", "reasoning_content", "refusal", "text", "thinking"}
)


def usable_secrets(secrets: Iterable[str]) -> tuple[str, ...]:
    """The secrets that are long enough to be keys, longest first because one may contain another."""
    return tuple(sorted({one for one in secrets if len(one) >= MIN_SECRET_CHARS}, key=len, reverse=True))


def contains_secret(body: bytes, secrets: Sequence[str]) -> bool:
    """Whether a JSON text contains one of the keys."""
    return any(orjson.dumps(secret)[1:-1] in body for secret in secrets)


def without_own_keys(raw: bytes, secrets: Sequence[str]) -> tuple[bytes, Any] | None:
    """A whole answer without the keys and without its tokens, as bytes and parsed; None if it contains no key."""
    body = None
    if not contains_secret(raw, secrets):
        if b"\\" not in raw:
            return None
        # The same text may be written with escapes.
        body = orjson.loads(raw)
        if not contains_secret(orjson.dumps(body), secrets):
            return None
    clean = without_tokens(scrubbed(orjson.loads(raw) if body is None else body, secrets))
    return orjson.dumps(clean), clean


def without_tokens(value: Any) -> Any:
    """JSON without token fields."""
    if isinstance(value, dict):
        return {name: without_tokens(item) for name, item in value.items() if name not in _TOKEN_FIELDS}
    return [without_tokens(item) for item in value] if isinstance(value, list) else value


class StreamGuard:
    """A filter for the chunks of one stream. Chunks are held back while a text in them may be the beginning of a key.

    Args:
        secrets: at least one, from ``usable_secrets``.

    Attributes:
        cut: whether a key was found.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self.cut = False
        self._secrets = secrets
        self._held: list[Json] = []
        self._open: dict[tuple[Any, ...], list[tuple[Json, str]]] = {}
        """Place of a text -> the last pieces of it that may be part of a key."""

    def feed(self, chunks: Sequence[Json]) -> list[Json]:
        """Add chunks; returns those that may be sent."""
        going: list[Json] = []
        for came in chunks:
            chunk = came
            if contains_secret(orjson.dumps(came), self._secrets):
                self.cut = True
                chunk = scrubbed(without_tokens(came), self._secrets)
            places: list[tuple[tuple[Any, ...], Json, str]] = []
            _texts(chunk, (), places)
            for place, owner, name in places:
                self._follow(place, owner, name)
            self._held.append(_stripped(chunk) if self.cut else chunk)
            if not self._open:
                going += self._held
                self._held = []
        return going

    def rest(self) -> list[Json]:
        """The chunks still held back at the end of the stream; an incomplete key is no key."""
        held, self._held = self._held, []
        self._open.clear()
        return held

    def _follow(self, place: tuple[Any, ...], owner: Json, name: str) -> None:
        pieces = [*self._open.pop(place, ()), (owner, name)]
        text = "".join(of[field] for of, field in pieces)
        if any(secret in text for secret in self._secrets):
            self.cut = True
            for secret in self._secrets:
                text = text.replace(secret, SCRUBBED.decode())
            for of, field in pieces:
                of[field] = ""
            owner[name] = text
            self._held = [_stripped(chunk) for chunk in self._held]
            pieces = [(owner, name)]
        if self._may_begin(text):
            self._open[place] = pieces

    def _may_begin(self, text: str) -> bool:
        """Whether the text ends with the beginning of a key."""
        for secret in self._secrets:
            at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
            while at >= 0:
                if secret.startswith(text[at:]):
                    return True
                at = text.find(secret[0], at + 1)
        return False


def _stripped(chunk: Json) -> Json:
    """Remove the tokens from a chunk, in place because others point into it."""
    stack: list[Any] = [chunk]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            for name in _TOKEN_FIELDS.intersection(value):
                del value[name]
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return chunk


def _texts(value: Any, place: tuple[Any, ...], texts: list[tuple[tuple[Any, ...], Json, str]]) -> None:
    """The text pieces of a chunk, each with its place; the pieces of one text share it."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            index = item.get("index", i) if isinstance(item, dict) else i
            _texts(item, (*place, index), texts)
    elif isinstance(value, dict):
        if "index" in value and not place:
            place = (value["index"],)
        for name, item in value.items():
            if name in _TOKEN_FIELDS:
                continue
            if isinstance(item, str):
                if name in _TEXT_FIELDS and item:
                    texts.append(((*place, name), value, name))
            elif isinstance(item, dict | list):
                _texts(item, (*place, name), texts)
