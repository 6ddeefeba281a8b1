"""Text of token ids, shown only when the tokenizer is known to be the right one.

A wrong tokenizer gives plausible but wrong text. So text is shown only when the step records the tokenizer's hash, or
when the decoded response equals the captured text. Otherwise only ids are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from studio.widgets.steps.messages import calls_of, parts_of, reasoning_of

if TYPE_CHECKING:
    from core.config import Settings
    from core.serving.tokenizer import ChatTokenizer

Vocab = dict[int, tuple[str, bool]]
CONFIRM_CHARS = 400


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """The tokenizer of some ids, or None, with one line that explains the choice."""

    tokenizer: ChatTokenizer | None
    why: str

    def vocab(self, ids: Iterable[int]) -> Vocab:
        """id -> (text, special) of the distinct ids that the tokenizer knows."""
        if self.tokenizer is None:
            return {}
        table, special = self.tokenizer.token_bytes, self.tokenizer.special_ids
        distinct = np.unique(np.asarray(list(ids) if not isinstance(ids, np.ndarray) else ids, dtype=np.int64))
        return {i: (bytes_text(table[i]), i in special) for i in distinct.tolist() if 0 <= i < len(table)}

    def spelled(self, ids: NDArray[np.int32]) -> list[tuple[int, int, str]]:
        """The characters that several tokens spell byte by byte: (first token, number of tokens, text).

        Args:
            ids: int32 [n_tokens].
        """
        if self.tokenizer is None:
            return []
        table = self.tokenizer.token_bytes
        partial = [i for i in np.unique(ids).tolist() if 0 <= i < len(table) and not is_text(table[i])]
        places = np.flatnonzero(np.isin(ids, partial))
        characters: list[tuple[int, int, str]] = []
        for run in np.split(places, np.flatnonzero(np.diff(places) != 1) + 1):
            first, gathered = None, b""
            for place in run.tolist():
                first = place if first is None else first
                gathered += table[int(ids[place])]
                if is_text(gathered):
                    characters.append((first, place - first + 1, gathered.decode("utf-8")))
                    first, gathered = None, b""
        return characters

    def decode(self, ids: Iterable[int]) -> str | None:
        """Text of the ids with special tokens written out; None when no tokenizer fits."""
        if self.tokenizer is None:
            return None
        return self.tokenizer.decode([int(i) for i in ids], skip_special=False)


UNKNOWN_TOKENIZER = TokenTexts(None, "ids only: the tokenizer of this step is not known here")


def bytes_text(raw: bytes) -> str:
    """Bytes of one token as text; bytes that are not a whole character are shown in hex.

    >>> bytes_text(b" hello"), bytes_text(b"\\xe2\\x86")
    (' hello', '\\\\xe2\\\\x86')
    """
    return raw.decode("utf-8", errors="backslashreplace")


def is_text(raw: bytes) -> bool:
    """Whether bytes are whole characters.

    >>> is_text("م".encode()), is_text("م".encode()[:1])
    (True, False)
    """
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def texts_for(step: Mapping[str, Any], settings: Settings) -> TokenTexts:
    """The tokenizer of a step: by hash, or confirmed by its captured text; ``UNKNOWN_TOKENIZER`` otherwise."""
    named = step.get("tokenizer_hash")
    for folder, name in _candidates(settings):
        tokenizer, own_hash = _load(folder)
        if named is not None:
            if named == own_hash:
                return TokenTexts(tokenizer, f"text by {name}, same hash as the step's")
        elif confirms(tokenizer, step):
            return TokenTexts(tokenizer, f"text by {name}, confirmed by the captured answer")
    return UNKNOWN_TOKENIZER


def confirms(tokenizer: ChatTokenizer, step: Mapping[str, Any]) -> bool:
    """Whether the decoded response contains the text of the captured response message."""
    ids, message = step.get("response_ids"), step.get("response_message")
    if ids is None or len(ids) == 0 or not message:
        return False
    ids = [int(i) for i in ids]
    if max(ids) >= tokenizer.n_vocab or min(ids) < 0:
        return False
    decoded = " ".join(tokenizer.decode(ids).split())
    wanted = [str(part.get("text", "")) for part in parts_of(message)] + [reasoning_of(message)]
    wanted += [str(call["name"] or "") for call in calls_of(message)]
    captured = [" ".join(text.split())[:CONFIRM_CHARS] for text in wanted if text.strip()]
    return bool(captured) and all(text in decoded for text in captured)


def _candidates(settings: Settings) -> list[tuple[Path | None, str]]:
    folders: list[tuple[Path | None, str]] = [(None, "the shipped tokenizer")]
    model_dir = settings.local_model_dir
    if model_dir is not None and (model_dir / "tokenizer.json").exists():
        folders.append((model_dir, f"the tokenizer of {model_dir.name}"))
    folders += [(folder, f"the tokenizer of {pattern}") for pattern, folder in settings.tokenizers.items()]
    return folders


@lru_cache(4)
def _load(folder: Path | None) -> tuple[ChatTokenizer, str]:
    from core.serving.tokenizer import load_tokenizer, tokenizer_hash

    return load_tokenizer(folder), tokenizer_hash(folder)
