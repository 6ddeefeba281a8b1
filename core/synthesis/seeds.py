"""Seed lists: personas, categories with their operations, read from a folder or from the demo data."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.packs.fields import as_list, as_object, as_text, parse_json

FILES = ("personas.json", "categories.json", "operations.json")


@dataclass(frozen=True)
class Seeds:
    """What tasks are sampled from.

    Attributes:
        personas: descriptions of people.
        categories: category -> its macro category.
        operations: basic operations of an agent.
    """

    personas: tuple[str, ...]
    categories: Mapping[str, str]
    operations: tuple[str, ...]

    def sample(self, seed: int, number: int, n_operations: int) -> dict[str, Any]:
        """``task_category``, ``personal``, ``basic_operations`` of the task ``number``; equal for equal arguments."""
        chance = random.Random(f"{seed}/{number}")
        n = min(n_operations, len(self.operations))
        return {
            "task_category": chance.choice(list(self.categories)),
            "personal": chance.choice(self.personas),
            "basic_operations": sorted(chance.sample(self.operations, n)),
        }


def read_seeds(folder: Path) -> Seeds:
    """The seed lists of a folder.

    ``personas.json`` and ``operations.json`` are lists of texts; a persona may be ``{persona: text}``.
    ``categories.json`` is a list of ``{category, subcategories}``, as in ClawGym.

    Raises:
        InvalidInput: a file is missing or has another form.
    """
    lists = {name: _read(folder / name) for name in FILES}
    personas = [one.get("persona") if isinstance(one, dict) else one for one in lists[FILES[0]]]
    categories: dict[str, str] = {}
    for entry in lists[FILES[1]]:
        one = as_object(entry, FILES[1])
        macro = as_text(one.get("category"), f"{FILES[1]}.category")
        for name in as_list(one.get("subcategories"), f"{FILES[1]}.subcategories"):
            categories[as_text(name, f"{FILES[1]}.subcategories")] = macro
    return Seeds(
        tuple(as_text(one, FILES[0]) for one in personas),
        categories,
        tuple(as_text(one, FILES[2]) for one in lists[FILES[2]]),
    )


def _read(path: Path) -> list[Any]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{path} can't be read: {error.strerror}", field="seeds", hint=f"a folder with {', '.join(FILES)}"
        ) from error
    values = as_list(parse_json(content, path.name), path.name)
    if not values:
        raise InvalidInput(f"{path.name} is empty", field="seeds", hint="at least one entry")
    return values


def demo_folder() -> Path:
    """The folder with the shipped seed lists and skills."""
    from core.tasks.demo import DEMO_DATA

    return DEMO_DATA / "synthesis"
