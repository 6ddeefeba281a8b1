"""Skill folders: SKILL.md and the text files beside it, without secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from core.errors import InvalidInput
from core.packs.tree import read_file

MARKER = "SKILL.md"
MAX_FILE = 64 << 10
MAX_CHARS = 24_000
"""Longest text of a skill in a prompt, characters."""
HIDDEN = "[secret]"
_NAMED = re.compile(
    r"(?im)^([\s\"'*-]*(?:export\s+)?[\w.-]*(?:token|secret|passw(?:or)?d|api[_-]?key|credential)[\w.-]*[\"']?\s*[:=]\s*)"
    r"((?!\[secret\])\S.*)$"
)
_KEY_FILES = re.compile(r"(?i)(^|/)(\.env.*|.*\.(pem|key|p12|pfx|keystore)|id_(rsa|dsa|ecdsa|ed25519).*|\.netrc)$")


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill folder.

    Attributes:
        name: name of the folder.
        text: SKILL.md and the other text files, with secrets replaced by ``[secret]``.
        n_secrets: how many were replaced; files that hold keys count as one and are left out.
        n_left_out: files that are no text, too large, or beyond the limit.
    """

    name: str
    text: str
    n_secrets: int
    n_left_out: int


def read_skills(folder: Path) -> list[Skill]:
    """The skills of a folder: every folder in it with a SKILL.md, in order of name. Links are not followed.

    Raises:
        InvalidInput: there is none.
    """
    skills = []
    try:
        if folder.is_dir():
            skills = [
                read_skill(one)
                for one in sorted(folder.iterdir())
                if one.is_dir() and not one.is_symlink() and (one / MARKER).is_file()
            ]
    except OSError as error:
        raise InvalidInput(
            f"{folder} can't be read: {error.strerror}", field="skills", hint="a folder of skill folders"
        ) from error
    if not skills:
        raise InvalidInput(f"{folder} has no skill", field="skills", hint=f"a folder of folders with {MARKER}")
    return skills


def read_skill(folder: Path) -> Skill:
    """One skill folder."""
    parts: list[str] = []
    n_secrets = n_left_out = n_chars = 0
    paths = sorted(folder.rglob("*"), key=lambda path: (path.name != MARKER, path.as_posix()))
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            continue
        name = path.relative_to(folder).as_posix()
        if _KEY_FILES.search(name):
            n_secrets += 1
            continue
        try:
            text = read_file(path, limit=MAX_FILE).text
        except InvalidInput:
            text = None
        if text is None or n_chars >= MAX_CHARS:
            n_left_out += 1
            continue
        clean, n = without_secrets(text)
        n_secrets += n
        # Cut after the secrets are gone: half a key is not recognised as one.
        clean = clean[: MAX_CHARS - n_chars]
        n_chars += len(clean)
        parts.append(f"File {name}:\n{clean.strip()}")
    return Skill(folder.name, "\n\n".join(parts), n_secrets, n_left_out)


def without_secrets(text: str) -> tuple[str, int]:
    """The text with keys, tokens and passwords replaced, and their number.

    The rules are those of the studio's redaction; values of settings whose names end in token, secret, password or key
    are replaced as well, whatever they look like.
    """
    from core.pool.redaction.rules import PATTERNS, SECRETS

    total = 0
    for name in SECRETS:
        text, n = re.subn(PATTERNS[name], HIDDEN, text)
        total += n
    text, n = _NAMED.subn(lambda match: f"{match[1]}{HIDDEN}", text)
    return text, total + n
