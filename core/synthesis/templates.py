"""The prompts of the stages: text files with ``{{name}}`` for values; each run has copies that can be edited."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
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

    @property
    def places(self) -> frozenset[str]:
        """The names of its places."""
        return frozenset(_PLACE.findall(self.text))

    def render(self, values: Mapping[str, str]) -> str:
        """The text with its values; values are not searched for places.

        Raises:
            InvalidInput: the text has a place for which there is no value.
        """
        self.check(values)
        return _PLACE.sub(lambda match: values[match[1]], self.text)

    def check(self, known: Collection[str]) -> None:
        """Raise InvalidInput if the text is empty, or has a place that is not ``known``."""
        unknown = sorted(self.places - set(known))
        if unknown:
            raise InvalidInput(
                f"the prompt {self.name} has the unknown place {{{{{unknown[0]}}}}}",
                field=f"prompts.{self.name}",
                hint=f"it can have {', '.join(sorted(known))}",
            )
        if not self.text.strip():
            raise InvalidInput(f"the prompt {self.name} is empty", field=f"prompts.{self.name}", hint="write its text")


def changed(texts: Mapping[str, str]) -> dict[str, Template]:
    """Changed prompts by name, checked: each is one of the shipped prompts, and has no places but theirs.

    Raises:
        InvalidInput: there is no such prompt, it is empty, or it has an unknown place.
    """
    known = shipped()
    for name in texts:
        if name not in known:
            raise InvalidInput(f"there is no prompt {name!r}", field="prompts", hint=", ".join(sorted(known)))
    made = {name: Template(name, text) for name, text in texts.items()}
    for name, template in made.items():
        template.check(known[name].places)
    return made


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
