"""Shows a file of a task as text, without running or rendering anything of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from core.packs.model import PackFile

MOST_CHARACTERS = 60_000
MOST_BYTES = 512
LANGUAGES = {
    ".py": "python", ".json": "json", ".jsonl": "json", ".sh": "bash", ".md": "markdown", ".csv": "csv",
    ".html": "html", ".js": "javascript", ".ts": "typescript", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml",
    ".xml": "xml", ".sql": "sql", ".css": "css", ".ini": "ini",
}  # fmt: skip
"""File suffix -> language for colouring."""
# Characters that do not show, or that change the order in which the others show.
_HIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


@dataclass(frozen=True, slots=True)
class Preview:
    """A file as text.

    Attributes:
        text: its content; of a file that is not UTF-8 text, the first bytes in hexadecimal. Hidden and control
            characters are written as ``\\u200b``.
        language: for colouring; None: plain.
        is_text: whether it is UTF-8 text.
        cut: whether only the beginning is shown.
        n_bytes: size of the file.
        n_hidden: hidden or control characters in the shown part.
    """

    text: str
    language: str | None
    is_text: bool
    cut: bool
    n_bytes: int
    n_hidden: int


def preview(path: str, file: PackFile) -> Preview:
    """The preview of a file; ``path`` gives the language."""
    text = file.text
    size = len(file.content)
    if text is None:
        shown = file.content[:MOST_BYTES].hex(" ")
        return Preview(shown, None, False, size > MOST_BYTES, size, 0)
    shown, n_hidden = _HIDDEN.subn(lambda one: f"\\u{ord(one[0]):04x}", text[:MOST_CHARACTERS])
    language = LANGUAGES.get(PurePosixPath(path).suffix.lower())
    return Preview(shown, language, True, len(text) > MOST_CHARACTERS, size, n_hidden)
