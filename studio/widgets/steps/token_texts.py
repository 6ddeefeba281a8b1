"""Token ids to text, only where the tokenizer is known to be the one that made them.

A wrong tokenizer gives plausible nonsense, so a text is shown when the step names the tokenizer's hash, or when the
decoded response is the text that was captured. Otherwise ids stay ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from studio.widgets.steps.messages import calls_of, parts_of, reasoning_of

if TYPE_CHECKING:
    from core.config import Settings
    from core.serving.tokenizer import ChatTokenizer

Vocab = dict[int, tuple[str, bool]]
CONFIRM_CHARS = 400


@dataclass(frozen=True, slots=True)
class Texts:
    """A tokenizer that fits some ids, or none, and one line that says why."""

    tokenizer: ChatTokenizer | None
    why: str

    def vocab(self, ids: Iterable[int]) -> Vocab:
        """id -> (text, special) of the distinct ids that the tokenizer knows."""
        if self.tokenizer is None:
            return {}
        table, special = self.tokenizer.token_bytes, self.tokenizer.special_ids
        distinct = np.unique(np.asarray(list(ids) if not isinstance(ids, np.ndarray) else ids, dtype=np.int64))
        return {i: (bytes_text(table[i]), i in special) for i in distinct.tolist() if 0 <= i < len(table)}

    def decode(self, ids: Iterable[int]) -> str | None:
        """Text of the ids with special tokens written out; None when no tokenizer fits."""
        if self.tokenizer is None:
            return None
        return self.tokenizer.decode([int(i) for i in ids], skip_special=False)


UNKNOWN = Texts(None, "ids only: the tokenizer of this step is not known here")


def bytes_text(raw: bytes) -> str:
    """Bytes of one token as text; bytes that are only part of a character are spelled in hex.

    >>> bytes_text(b" hello"), bytes_text(b"\\xe2\\x86")
    (' hello', '\\\\xe2\\\\x86')
    """
    return raw.decode("utf-8", errors="backslashreplace")


def texts_for(step: Mapping[str, Any], settings: Settings) -> Texts:
    """The tokenizer of a step: by hash, or confirmed by its captured text; ``UNKNOWN`` otherwise."""
    named = step.get("tokenizer_hash")
    for folder, name in _candidates(settings):
        tokenizer, own_hash = _load(folder)
        if named is not None:
            if named == own_hash:
                return Texts(tokenizer, f"text by {name}, same hash as the step's")
        elif confirms(tokenizer, step):
            return Texts(tokenizer, f"text by {name}, confirmed by the captured answer")
    return UNKNOWN


def confirms(tokenizer: ChatTokenizer, step: Mapping[str, Any]) -> bool:
    """Whether the decoded response says what the captured response message says."""
    ids, message = step.get("response_ids"), step.get("response_message")
    if ids is None or len(ids) == 0 or not message:
        return False
    ids = [int(i) for i in ids]
    if max(ids) >= tokenizer.n_vocab or min(ids) < 0:
        return False
    decoded = " ".join(tokenizer.decode(ids).split())
    wanted = [str(part.get("text", "")) for part in parts_of(message)] + [reasoning_of(message)]
    wanted += [str(call["name"] or "") for call in calls_of(message)]
    said = [" ".join(text.split())[:CONFIRM_CHARS] for text in wanted if text.strip()]
    return bool(said) and all(text in decoded for text in said)


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
