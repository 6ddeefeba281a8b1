"""What must not leave the pool: secrets, e-mail addresses, own patterns; found in texts and in tokens.

A hit is either *dropped* with its step or *masked*. Masked text is replaced by ``[redacted:NAME]``. Masked tokens keep
their places: every token that covers a part of a hit is replaced, one for one, by a harmless id (``mask_id``), so no
position shifts and every length stays; where it was sampled it loses its loss and its log-prob.

Patterns are Python's, and are tried on each text by itself; tool arguments are read as the JSON that they are.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput

PATTERNS: dict[str, str] = {
    "private_key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----[\s\S]*?(?:-----END (?:[A-Z]+ )*PRIVATE KEY-----|\Z)",
    "api_key": (
        r"sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_-]{20,}"
        r"|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{35}|(?:AKIA|ASIA)[A-Z0-9]{16}|hf_[A-Za-z0-9]{30,}"
        r"|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,}|(?:sk|rk|pk)_live_[A-Za-z0-9]{16,}"
    ),
    "token": (r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}|(?i:bearer)\s+[A-Za-z0-9._~+/-]{20,}=*"),
    "url_password": r"(?<=://)[^\s:/@]+:[^\s:/@]+(?=@)",
    "assigned_secret": (
        r"(?i:(?:password|passwd|secret|api[_-]?key|access[_-]?key|auth[_-]?token)[\"']?\s*[:=]\s*[\"']?)"
        r"[^\s\"',;]{8,}"
    ),
    "email": r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}",
}
"""The built-in rules by name."""
NEEDLES: dict[str, str] = {
    "private_key": "PRIVATE KEY",
    "api_key": "sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AIza|AKIA|ASIA|hf_|npm_|pypi-|k_live_",
    "token": "eyJ|(?i:bearer)",
    "url_password": "://",
    "assigned_secret": "(?i:password|passwd|secret|api[_-]?key|access[_-]?key|auth[_-]?token)",
    "email": "@",
}
"""What every text with a hit of a built-in rule holds; looking for that is much quicker. Python's and RE2's alike."""
SECRETS = tuple(name for name in PATTERNS if name != "email")

Action = Literal["mask", "drop"]
Span = tuple[int, int, str]
"""(begin, end, rule) in characters."""


@dataclass(frozen=True)
class Redaction:
    """Rules and what is done about a hit.

    Attributes:
        rules: name -> pattern.
        action: what becomes of a step with a hit.
        unreadable: what becomes of a step of whose text or tokens nothing can be read: ``drop`` or ``keep``.
    """

    rules: Mapping[str, str]
    action: Action = "mask"
    unreadable: Literal["drop", "keep"] = "drop"

    def __post_init__(self) -> None:
        """InvalidInput names a pattern that is none, or that matches the empty text."""
        if not self.rules:
            raise InvalidInput("Redaction without a rule.", field="redaction.rules")
        for name, pattern in self.rules.items():
            if not re.fullmatch(r"[\w.-]{1,64}", name):
                raise InvalidInput(f"{name!r} is no name for a rule.", field="redaction.patterns")
            try:
                found = re.compile(pattern)
            except re.error as error:
                raise InvalidInput(f"The pattern {name!r} is none: {error}", field="redaction.patterns") from error
            if found.search(""):
                raise InvalidInput(f"The pattern {name!r} matches nothing at all.", field="redaction.patterns")

    @cached_property
    def patterns(self) -> list[tuple[str, re.Pattern[str]]]:
        """Compiled rules, in order."""
        return [(name, re.compile(pattern)) for name, pattern in self.rules.items()]

    @cached_property
    def needle(self) -> str | None:
        """A regular expression that every text with a hit matches; None when there is none to be had."""
        if any(PATTERNS.get(name) != pattern for name, pattern in self.rules.items()):
            return None
        return "|".join(NEEDLES[name] for name in self.rules)

    @cached_property
    def stored_needle(self) -> str | None:
        """The same for texts as they are stored: as JSON that may hold JSON, where characters have other spellings."""
        return None if self.needle is None else rf"{self.needle}|\\u|\\/|claw-media:"

    @cached_property
    def _may(self) -> re.Pattern[str] | None:
        return None if self.needle is None else re.compile(self.needle)

    def spans(self, text: str) -> list[Span]:
        """Hits of a text, earliest first, without overlap: of two that overlap the earlier counts, then the longer."""
        if self._may is not None and not self._may.search(text):
            return []
        found = [
            (match.start(), match.end(), name) for name, pattern in self.patterns for match in pattern.finditer(text)
        ]
        found.sort(key=lambda span: (span[0], -span[1]))
        kept: list[Span] = []
        for begin, end, name in found:
            if end <= begin:
                continue
            if kept and begin < kept[-1][1]:
                # What reaches beyond the hit before it is covered as well.
                kept[-1] = (kept[-1][0], max(end, kept[-1][1]), kept[-1][2])
            else:
                kept.append((begin, end, name))
        return kept

    def clean(self, value: Any, counts: Counter[str] | None = None) -> Any:
        """JSON with every hit in its texts replaced; the very same object where there is none."""
        if isinstance(value, str):
            return self._clean_text(value, counts)
        if isinstance(value, Mapping):
            made = {key: self._clean_field(key, item, counts) for key, item in value.items()}
            return made if any(made[key] is not value[key] for key in value) else value
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            items = [self.clean(item, counts) for item in value]
            return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
        return value

    def _clean_field(self, key: Any, value: Any, counts: Counter[str] | None) -> Any:
        if key != "arguments" or not isinstance(value, str):
            return self.clean(value, counts)
        try:
            parsed = json.loads(value)
        except ValueError:
            return self._clean_text(value, counts)
        cleaned = self.clean(parsed, counts)
        return value if cleaned is parsed else json.dumps(cleaned, ensure_ascii=False)

    def _clean_text(self, text: str, counts: Counter[str] | None) -> str:
        found = self.spans(text)
        if not found:
            return text
        pieces, at = [], 0
        for begin, end, name in found:
            pieces += [text[at:begin], f"[redacted:{name}]"]
            at = end
            if counts is not None:
                counts[name] += 1
        return "".join([*pieces, text[at:]])

    def token_runs(self, pieces: Sequence[bytes]) -> Iterator[tuple[int, int, str]]:
        """Runs of tokens that cover hits of the text that they spell: (first, end, rule).

        Args:
            pieces: bytes of each token, [n].
        """
        whole = b"".join(pieces)
        text = whole.decode("utf-8", errors="surrogateescape")
        found = self.spans(text)
        if not found:
            return
        ends = np.cumsum(np.fromiter((len(piece) for piece in pieces), np.int64, len(pieces)))
        at_char = _byte_offsets(text)
        for begin, end, name in found:
            first = int(np.searchsorted(ends, at_char[begin], side="right"))
            last = int(np.searchsorted(ends, at_char[end], side="left"))
            yield first, min(last + 1, len(pieces)), name

    def to_json(self) -> dict[str, Any]:
        """As a version keeps it."""
        return {"rules": dict(self.rules), "action": self.action, "unreadable": self.unreadable}


def _byte_offsets(text: str) -> NDArray[np.int64]:
    """Byte at which each character of a surrogate-escaped text begins, and the end: int64 [n + 1]."""
    points = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
    width = np.ones(len(points), dtype=np.int64)
    escaped = (points >= 0xDC80) & (points <= 0xDCFF)
    for least in (0x80, 0x800, 0x10000):
        width += (points >= least) & ~escaped
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(width)])


def parse_redaction(data: Mapping[str, Any] | None) -> Redaction | None:
    """``{rules: [built-in names], patterns: {name: regex}, action, unreadable}``; None and {} look for nothing.

    ``secrets`` stands for all built-in rules but e-mail. What ``Redaction.to_json`` gives is read as well.

    Raises:
        InvalidInput: an unknown rule, action or field, or a pattern that is none.
    """
    if not data:
        return None
    unknown = set(data) - {"rules", "patterns", "action", "unreadable"}
    if unknown:
        raise InvalidInput(
            f"Redaction has no field {sorted(unknown)[0]!r}.",
            field=f"redaction.{sorted(unknown)[0]}",
            hint="Fields: rules, patterns, action, unreadable.",
        )
    given = data.get("rules") or ()
    rules: dict[str, str] = dict(given) if isinstance(given, Mapping) else {}
    for name in () if isinstance(given, Mapping) else given:
        if name != "secrets" and name not in PATTERNS:
            raise InvalidInput(
                f"No rule {name!r}.", field="redaction.rules", hint=f"secrets, {', '.join(PATTERNS)}; or own patterns."
            )
        rules |= {one: PATTERNS[one] for one in (SECRETS if name == "secrets" else (name,))}
    own = data.get("patterns") or {}
    if not isinstance(own, Mapping) or not all(isinstance(text, str) for text in (*own.values(), *rules.values())):
        raise InvalidInput("patterns is an object of name and pattern.", field="redaction.patterns")
    action, unreadable = data.get("action", "mask"), data.get("unreadable", "drop")
    if action not in ("mask", "drop"):
        raise InvalidInput("action is mask or drop.", field="redaction.action")
    if unreadable not in ("keep", "drop"):
        raise InvalidInput("unreadable is keep or drop.", field="redaction.unreadable")
    return Redaction({**rules, **own}, action, unreadable)
