"""The prompts of the stages: text files with ``{{name}}`` for values; each run has copies that can be edited."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import InvalidInput

FOLDER = Path(__file__).parent / "prompts"
_PLACE = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True, slots=True)
class Template:
    """One prompt: its name and its text."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the text, 64 hex digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def render(self, values: Mapping[str, str]) -> str:
        """The text with its values; values are not searched for places.

        Raises:
            InvalidInput: the text has a place for which there is no value.
        """
        unknown = sorted(set(_PLACE.findall(self.text)) - values.keys())
        if unknown:
            raise InvalidInput(
                f"the prompt {self.name} has the unknown place {{{{{unknown[0]}}}}}",
                field=f"prompts.{self.name}",
                hint=f"it can have {', '.join(sorted(values))}",
            )
        return _PLACE.sub(lambda match: values[match[1]], self.text)


def shipped() -> dict[str, Template]:
    """The prompts that come with the studio, by name."""
    return read_templates(FOLDER)


def read_templates(folder: Path) -> dict[str, Template]:
    """The prompts of a folder, by name: its ``.txt`` files.

    Raises:
        InvalidInput: a file is no text.
    """
    templates = {}
    for path in sorted(folder.glob("*.txt")):
        try:
            templates[path.stem] = Template(path.stem, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path.name} can't be read: {error}", field=f"prompts.{path.stem}") from error
    return templates
