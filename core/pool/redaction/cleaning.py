"""Replaces hits of redaction rules in a conversation's JSON: texts, keys, values under revealing keys, split texts.

A model reads the text parts of a message as one text, so they are searched as one. The end of a message and the
beginning of the next are also searched as one text: a hit there counts if neither message has it alone, or if it ends
with its own end mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from core.pool.redaction.hits import Hit, HitSummary

AT_BORDER: Final = 4096
"""Characters of each of two messages that are searched as one."""
_END_MARK: Final = "-----"
_OWN_KEYS: Final = frozenset(
    {
        "arguments", "content", "description", "enum", "format", "function", "functions", "id", "image_url",
        "index", "input", "is_error", "items", "name", "object", "output", "parameters", "properties", "reasoning",
        "reasoning_content", "refusal", "required", "role", "signature", "status", "text", "thinking", "title",
        "tool_call_id", "tool_calls", "tool_use_id", "tools", "type", "url", "value",
    }
)  # fmt: skip
"""Keys of the dialects: without them a message is none. They name no secret."""
_REASONING_KEYS: Final = frozenset({"reasoning", "reasoning_content", "thinking"})


Hits = Callable[[str], list[Hit]]


class Cleaner:
    """Replaces hits.

    Args:
        hits: finds them in a text, in order, without overlap.
        summary: counts the hits.
    """

    def __init__(self, hits: Hits, summary: HitSummary | None) -> None:
        self._hits = hits
        self._summary = HitSummary() if summary is None else summary

    def clean(self, value: Any, key: str | None = None) -> Any:
        """The JSON value with all hits replaced; the same object if there is no hit.

        Args:
            key: the JSON key of the text, if it may reveal that the value is secret.
        """
        if isinstance(value, str):
            return self._text(value) if key is None else self._clean_with_key(key, value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            return self._sequence(value, key)
        if isinstance(value, int) and not isinstance(value, bool):
            text = str(value)
            cleaned = self._text(text) if key is None else self._clean_with_key(key, text)
            return value if cleaned is text else cleaned
        return value

    def _text(self, text: str) -> str:
        return self._replaced(text, self._hits(text))

    def _replaced(self, text: str, hits: Sequence[Hit]) -> str:
        if not hits:
            return text
        for hit in hits:
            self._summary.add(hit)
        return replaced(text, hits)

    def _clean_with_key(self, key: str, text: str) -> str:
        """The text, cleaned; a rule may need its key to match, as in ``password: ...``."""
        glue = f"{key}="
        hits = self._hits(glue + text)
        if not any(hit.begin < len(glue) < hit.end for hit in hits):
            return self._text(text)
        moved = [
            hit._replace(begin=max(0, hit.begin - len(glue)), end=hit.end - len(glue), texts=_without(glue, hit.texts))
            for hit in hits
            if hit.end > len(glue)
        ]
        return self._replaced(text, moved)

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        named = next((value[name] for name in ("name", "key") if isinstance(value.get(name), str)), None)
        cleaned_items: dict[Any, Any] = {}
        changed = False
        for key, item in value.items():
            if key == "arguments" and isinstance(item, str):
                cleaned: Any = self._arguments(item)
            elif key in _REASONING_KEYS and not self._summary.with_reasoning:
                inner = Cleaner(self._hits, HitSummary())
                cleaned = inner.clean(item)
                self._summary.counts += inner._summary.counts
            else:
                telling = key if isinstance(key, str) and key not in _OWN_KEYS else None
                cleaned = self.clean(item, named if key == "value" and named is not None else telling)
            name = self._text(key) if isinstance(key, str) and key not in _OWN_KEYS else key
            changed |= cleaned is not item or name is not key
            n = 1
            while name is not key and (name in cleaned_items or name in value):
                n += 1
                name = f"{name.partition(' #')[0]} #{n}"
            cleaned_items[name] = cleaned
        return cleaned_items if changed else value

    def _sequence(self, value: Sequence[Any], key: str | None) -> Any:
        items = [self.clean(item, key) for item in value]
        parts = [i for i, item in enumerate(value) if isinstance(item, Mapping) and isinstance(item.get("text"), str)]
        if len(parts) > 1:
            texts = [value[i]["text"] for i in parts]
            hits = self._split(texts)
            for i, text, spans in zip(parts, texts, split_hits(texts, hits), strict=True):
                if spans:
                    text_hits = [hit for hit in self._hits(text) if not any(_overlap(hit, span) for span in spans)]
                    items[i] = {**items[i], "text": replaced(text, sorted([*text_hits, *spans]))}
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value

    def _split(self, texts: Sequence[str]) -> list[Hit]:
        """Hits of the texts read as one that go over an end of one of them."""
        ends, at = [], 0
        for text in texts[:-1]:
            at += len(text)
            ends.append(at)
        hits = [hit for hit in self._hits("".join(texts)) if any(hit.begin < end < hit.end for end in ends)]
        for hit in hits:
            self._summary.add(hit)
        return hits

    def _arguments(self, text: str) -> str:
        """Arguments of a tool call are JSON in a text; they stay JSON."""
        try:
            parsed = json.loads(text)
            cleaned = self.clean(parsed)
        except (ValueError, RecursionError):  # no JSON, or nested deeper than is read
            return self._text(text)
        serialized = text if cleaned is parsed else json.dumps(cleaned, ensure_ascii=False)
        if not serialized.isascii() and _HALF_PAIR.search(serialized):
            serialized = json.dumps(cleaned)
        # A duplicate key is read once.
        hits = [hit for hit in self._hits(serialized) if not any("[redacted:" in part for part in hit.texts)]
        return self._replaced(serialized, hits) if hits else serialized


_HALF_PAIR = re.compile("[\ud800-\udfff]")


def _without(glue: str, matched: tuple[str, ...]) -> tuple[str, ...]:
    """The matched texts without the key's part, since values in quotes and other forms occur without it."""
    texts = []
    for one in matched:
        begin = next((i for i in range(len(glue), 0, -1) if one.startswith(glue[-i:])), 0)
        texts.append(one[begin:])
    return tuple(texts)


def _overlap(a: Hit, b: Hit) -> bool:
    return a.begin < b.end and b.begin < a.end


def replaced(text: str, hits: Sequence[Hit]) -> str:
    """The text with ``[redacted:RULE]`` in the place of hits, which are in order and don't overlap."""
    pieces, at = [], 0
    for hit in hits:
        pieces += [text[at : hit.begin], f"[redacted:{hit.rule}]"]
        at = hit.end
    return "".join([*pieces, text[at:]])


def split_hits(texts: Sequence[str], hits: Sequence[Hit]) -> list[list[Hit]]:
    """Hits of the joined texts, for each text those that reach into it, in its own characters."""
    shares: list[list[Hit]] = []
    at = 0
    for text in texts:
        end = at + len(text)
        shares.append(
            [
                hit._replace(begin=max(hit.begin, at) - at, end=min(hit.end, end) - at)
                for hit in hits
                if hit.begin < end and hit.end > at
            ]
        )
        at = end
    return shares


def texts_of_message(message: Any) -> list[str]:
    """The text of a message: its content, or the texts of its parts."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else ()
    return [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]


def _with_texts(message: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    if isinstance(message["content"], str):
        return {**message, "content": texts[0]}
    remaining = iter(texts)
    parts = [
        {**part, "text": next(remaining)} if isinstance(part, Mapping) and isinstance(part.get("text"), str) else part
        for part in message["content"]
    ]
    return {**message, "content": parts}


def over_border(plain_hits: Hits, first: Any, second: Any) -> tuple[list[Hit], list[Hit]]:
    """Hits that begin in one message and end in the next: what of them each has, in characters of its whole text."""
    before, after = "".join(texts_of_message(first)), "".join(texts_of_message(second))
    cut = max(0, len(before) - AT_BORDER)
    tail, head = before[cut:], after[:AT_BORDER]
    if not tail or not head:
        return [], []
    border = len(tail)
    over = [hit for hit in plain_hits(tail + head) if hit.begin < border < hit.end]
    if not over:
        return [], []
    alone = [
        *plain_hits(tail),
        *(hit._replace(begin=hit.begin + border, end=hit.end + border) for hit in plain_hits(head)),
    ]
    real = [
        hit
        for hit in over
        if hit.texts[0].endswith(_END_MARK)
        or not any(inner.rule == hit.rule and _overlap(inner, hit) for inner in alone)
    ]
    ends = [hit._replace(begin=hit.begin + cut, end=border + cut) for hit in real]
    begins = [hit._replace(begin=0, end=hit.end - border) for hit in real]
    return sorted(ends)[:1], sorted(begins, key=lambda hit: -hit.end)[:1]


class Rules(Protocol):
    """``core.pool.redaction.rules.Redaction``."""

    def clean(self, value: Any, summary: HitSummary | None = None) -> Any: ...  # noqa: D102
    def plain_hits(self, text: str) -> list[Hit]: ...  # noqa: D102


def clean_conversation(
    rules: Rules, messages: Sequence[Any] | None, response: Any, known: dict[int, Any]
) -> tuple[Any, Any]:
    """Messages and the answer to them, cleaned, hits over two of them included.

    Args:
        rules: the rules to apply.
        messages: None where they are unknown.
        response: the answer, or None.
        known: cleaned messages by ``id``. The caller must keep the messages alive between calls.
    """
    conversation = [*(messages or ()), *([] if response is None else [response])]
    covered: dict[int, list[Hit]] = {}
    for i in range(len(conversation) - 1):
        for k, spans in zip(
            (i, i + 1), over_border(rules.plain_hits, conversation[i], conversation[i + 1]), strict=True
        ):
            covered.setdefault(k, []).extend(spans)
    cleaned_messages = []
    for k, message in enumerate(conversation):
        if covered.get(k):
            texts = texts_of_message(message)
            shares = split_hits(texts, _without_overlap(covered[k]))
            cleaned = [replaced(text, text_hits) for text, text_hits in zip(texts, shares, strict=True)]
            cleaned_messages.append(rules.clean(_with_texts(message, cleaned)))
        else:
            if id(message) not in known:
                known[id(message)] = rules.clean(message)
            cleaned_messages.append(known[id(message)])
    answer = None if response is None else cleaned_messages.pop()
    if messages is None:
        return None, answer
    return messages if all(
        a is b for a, b in zip(cleaned_messages, messages, strict=True)
    ) else cleaned_messages, answer


def _without_overlap(spans: list[Hit]) -> list[Hit]:
    kept: list[Hit] = []
    for hit in sorted(spans):
        if kept and hit.begin < kept[-1].end:
            kept[-1] = kept[-1]._replace(end=max(hit.end, kept[-1].end))
        else:
            kept.append(hit)
    return kept
