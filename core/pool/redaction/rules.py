"""Redaction rules: secrets, e-mail addresses and own patterns, matched in texts and in tokens.

A hit is either *dropped* with its step or *masked*. Masked text is replaced by ``[redacted:NAME]``. Masked tokens keep
their places: every token that covers a part of a hit is replaced, one for one, by a harmless id (``mask_id``), so no
position shifts and every length stays; where it was sampled it loses its loss and its log-prob.

Patterns use Python's syntax. They are applied to each text and to its decoded spellings (``spellings``), to the text
parts of a message as one, and to the end of one message with the beginning of the next (``cleaning``).
docs/redaction.md lists what is searched and what is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core.errors import InvalidInput
from core.pool.redaction.cleaning import Cleaner
from core.pool.redaction.hits import Hit, HitSummary
from core.pool.redaction.spellings import ENCODED, decodings

PATTERNS: dict[str, str] = {
    "private_key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----[\s\S]*?(?:-----END (?:[A-Z]+ )*PRIVATE KEY-----|\Z)",
    "api_key": (
        r"sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_-]{20,}"
        r"|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{35}|(?:AKIA|ASIA)[A-Z0-9]{16}|hf_[A-Za-z0-9]{30,}"
        r"|npm_[A-Za-z0-9]{36}|pypi-[A-Za-z0-9_-]{50,}|(?:sk|rk|pk)_live_[A-Za-z0-9]{16,}"
        r"|\bcs-[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"  # session keys of the studio
    ),
    "token": (r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}|(?i:bearer)\s+[A-Za-z0-9._~+/-]{20,}=*"),
    "url_password": r"(?<=://)[^\s:/@]+:[^\s:/@]+(?=@)",
    "assigned_secret": (
        r"(?i:(?:password|passwd|secret|secret[_-]?key|api[_-]?key|access[_-]?key|auth[_-]?token|access[_-]?token)"
        r"[\"']?\s*[:=]\s*[\"']?)[^\s\"',;]{8,}"
    ),
    "email": r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}",
}
"""The built-in rules by name."""
NEEDLES: dict[str, str] = {
    "private_key": "PRIVATE KEY",
    "api_key": "sk-|\\bcs-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|AIza|AKIA|ASIA|hf_|npm_|pypi-|k_live_",
    "token": "eyJ|(?i:bearer)",
    "url_password": "://",
    "assigned_secret": "(?i:password|passwd|secret|api[_-]?key|access[_-]?(?:key|token)|auth[_-]?token)",
    "email": "@",
}
"""What every text with a hit of a built-in rule holds; looking for that is much quicker. Python's and RE2's alike."""
SECRETS = tuple(name for name in PATTERNS if name != "email")

Action = Literal["mask", "drop"]
DEPTH = 8
"""The most nested encodings that are decoded."""


@dataclass(frozen=True)
class Redaction:
    """Redaction rules, and the action on a hit.

    Attributes:
        rules: name -> pattern.
        action: what becomes of a step with a hit.
        unreadable: what becomes of a step of whose text or tokens nothing can be read: ``drop`` or ``keep``.
        literals: (rule, text): texts that a rule matched elsewhere, searched as literal text.
    """

    rules: Mapping[str, str]
    action: Action = "mask"
    unreadable: Literal["drop", "keep"] = "drop"
    literals: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """InvalidInput names a pattern that is none, or that matches the empty text."""
        if not self.rules:
            raise InvalidInput("Redaction without a rule.", field="redaction.rules")
        for name, pattern in self.rules.items():
            if not re.fullmatch(r"[\w.-]{1,64}", name):
                raise InvalidInput(f"{name!r} is no name for a rule.", field="redaction.patterns")
            try:
                compiled = re.compile(pattern)
            except re.error as error:
                raise InvalidInput(f"The pattern {name!r} is none: {error}", field="redaction.patterns") from error
            if compiled.search(""):
                raise InvalidInput(f"The pattern {name!r} matches nothing at all.", field="redaction.patterns")

    @cached_property
    def patterns(self) -> list[tuple[str, re.Pattern[str]]]:
        """Compiled rules, in order."""
        named = [(name, re.compile(pattern)) for name, pattern in self.rules.items()]
        return named + [(name, re.compile(re.escape(text))) for name, text in self.literals]

    @cached_property
    def needle(self) -> str | None:
        """A regular expression that every text with a hit in plain words matches; None when there is none to be had."""
        if self.literals or any(PATTERNS.get(name) != pattern for name, pattern in self.rules.items()):
            return None
        return "|".join(NEEDLES[name] for name in self.rules)

    @cached_property
    def stored_needle(self) -> str | None:
        """The same for texts as they are stored, where a hit may be spelled in another way."""
        return None if self.needle is None else rf"{self.needle}|{ENCODED}|claw-media:"

    @cached_property
    def _plain(self) -> re.Pattern[str] | None:
        return None if self.needle is None else re.compile(self.needle)

    @cached_property
    def _signs(self) -> re.Pattern[str]:
        return re.compile(ENCODED)

    def plain_hits(self, text: str) -> list[Hit]:
        """Hits of the text without decoding it; they may overlap."""
        if self._plain is not None and not self._plain.search(text):
            return []
        return [
            Hit(match.start(), match.end(), name, (match.group(),))
            for name, pattern in self.patterns
            for match in pattern.finditer(text)
            if match.end() > match.start()
        ]

    def hits(self, text: str) -> list[Hit]:
        """Hits of a text in any of its spellings, earliest first, without overlap.

        Of two that overlap the earlier one names the rule, and what reaches beyond it is covered as well.
        """
        every = self._deep(text, DEPTH, {}) if self._signs.search(text) else self.plain_hits(text)
        hits = sorted(every, key=lambda hit: (hit.begin, -hit.end))
        kept: list[Hit] = []
        for hit in hits:
            if kept and hit.begin < kept[-1].end:
                last = kept[-1]
                texts = last.texts if hit.texts[0] in last.texts else (*last.texts, *hit.texts)
                kept[-1] = Hit(last.begin, max(hit.end, last.end), last.rule, texts)
            else:
                kept.append(hit)
        return kept

    def _deep(self, text: str, depth: int, known: dict[str, list[Hit]]) -> list[Hit]:
        """Args: known: hits of texts that were read already: two spellings can be undone in either order."""
        if text in known:
            return known[text]
        hits = known[text] = self.plain_hits(text)
        for inner in decodings(text) if depth else ():
            # A copy: an unknown entity decodes to itself.
            for hit in list(self._deep(inner.text, depth - 1, known)):
                begin, end = inner.source(hit.begin, hit.end - 1)
                hits.append(Hit(begin, end, hit.rule, hit.texts))
        return hits

    def spans(self, text: str) -> list[tuple[int, int, str]]:
        """``hits`` as (begin, end, rule)."""
        return [hit[:3] for hit in self.hits(text)]

    def clean(self, value: Any, summary: HitSummary | None = None) -> Any:
        """JSON with every hit in its texts, keys and values replaced; the same object if there is no hit."""
        return Cleaner(self.hits, summary).clean(value)

    def token_runs(self, pieces: Sequence[bytes]) -> Iterator[Hit]:
        """Runs of tokens that cover hits of the text that they spell: ``begin`` and ``end`` count tokens.

        Args:
            pieces: bytes of each token, [n].
        """
        joined = b"".join(pieces)
        text = joined.decode("utf-8", errors="surrogateescape")
        hits = self.hits(text)
        if not hits:
            return
        ends = np.cumsum(np.fromiter((len(piece) for piece in pieces), np.int64, len(pieces)))
        at_char = _byte_offsets(text)
        for hit in hits:
            first = int(np.searchsorted(ends, at_char[hit.begin], side="right"))
            last = int(np.searchsorted(ends, at_char[hit.end], side="left"))
            yield Hit(first, min(last + 1, len(pieces)), hit.rule, hit.texts)

    def to_json(self) -> dict[str, Any]:
        """As a version keeps it."""
        return {"rules": dict(self.rules), "action": self.action, "unreadable": self.unreadable}

    def to_public_json(self) -> dict[str, Any]:
        """The rules as JSON for recipients of the data. An own pattern may be secret: only its name is included."""
        names = {name: pattern if PATTERNS.get(name) == pattern else "own" for name, pattern in self.rules.items()}
        return {**self.to_json(), "rules": names}


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
    selected = data.get("rules") or ()
    rules: dict[str, str] = dict(selected) if isinstance(selected, Mapping) else {}
    for name in () if isinstance(selected, Mapping) else selected:
        if name != "secrets" and name not in PATTERNS:
            raise InvalidInput(
                f"No rule {name!r}.", field="redaction.rules", hint=f"secrets, {', '.join(PATTERNS)}; or own patterns."
            )
        rules |= {one: PATTERNS[one] for one in (SECRETS if name == "secrets" else (name,))}
    own_patterns = data.get("patterns") or {}
    if not isinstance(own_patterns, Mapping) or not all(
        isinstance(text, str) for text in (*own_patterns.values(), *rules.values())
    ):
        raise InvalidInput("patterns is an object of name and pattern.", field="redaction.patterns")
    action, unreadable = data.get("action", "mask"), data.get("unreadable", "drop")
    if action not in ("mask", "drop"):
        raise InvalidInput("action is mask or drop.", field="redaction.action")
    if unreadable not in ("keep", "drop"):
        raise InvalidInput("unreadable is keep or drop.", field="redaction.unreadable")
    return Redaction({**rules, **own_patterns}, action, unreadable)
