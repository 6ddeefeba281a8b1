"""Finds tasks of a pack by text and by facets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from core.errors import InvalidInput
from core.packs.clawgym import WORKSPACE
from core.packs.model import Pack, PackTask

PERSONA_END = "All file paths are relative to the workspace directory."
"""The end of a query of ClawGym's persona route."""


def route_of(task: PackTask) -> str:
    """ClawGym's route: the query of the persona route ends with a sentence, checks of the skill route name a folder."""
    if task.query.rstrip().endswith(PERSONA_END):
        return "persona"
    program = task.checker_files.get("check.py")
    return "skill" if program is not None and WORKSPACE.encode() in program.content else "none"


FACETS: Mapping[str, Callable[[PackTask], Sequence[str]]] = {
    "split": lambda task: (task.split or "none",),
    "category": lambda task: (task.category or "none",),
    "tag": lambda task: tuple(task.tags) or ("none",),
    "checker": lambda task: (task.checker or "none",),
    "rubric": lambda task: ("with rubric" if task.rules or task.rubric else "without",),
    "route": lambda task: (route_of(task),),
    "needs": lambda task: ("a container image" if task.image else "nothing",),
}
"""Facet -> the values that a task has."""


@dataclass(frozen=True)
class Listing:
    """The tasks of one pack version, prepared for search.

    Attributes:
        pack: the pack.
        texts: lower-case text of each task: id, query, category, tags, names of its files.
        facets: facet -> the values of each task.
    """

    pack: Pack
    texts: Sequence[str] = field(repr=False)
    facets: Mapping[str, Sequence[Sequence[str]]] = field(repr=False)

    def find(self, text: str = "", chosen: Mapping[str, Sequence[str]] | None = None) -> list[PackTask]:
        """The tasks that have every word of ``text``, and in each facet one of the chosen values; in order of id.

        Raises:
            InvalidInput: there is no such facet.
        """
        return [self.pack.tasks[i] for i in self._places(text, chosen or {})]

    def counts(self, text: str = "", chosen: Mapping[str, Sequence[str]] | None = None) -> dict[str, dict[str, int]]:
        """Facet -> value -> number of tasks that match everything but the choice in this facet; most frequent first."""
        picked = chosen or {}
        counts = {}
        for name in FACETS:
            others = {facet: values for facet, values in picked.items() if facet != name}
            counted = Counter(value for i in self._places(text, others) for value in self.facets[name][i])
            counts[name] = dict(sorted(counted.items(), key=lambda one: (-one[1], one[0])))
        return counts

    def _places(self, text: str, chosen: Mapping[str, Sequence[str]]) -> list[int]:
        for name in chosen:
            if name not in FACETS:
                raise InvalidInput(f"there is no facet {name!r}", field="facet", hint=", ".join(FACETS))
        places = list(range(len(self.texts)))
        for word in text.lower().split():
            places = [i for i in places if word in self.texts[i]]
        for name, values in chosen.items():
            if values:
                wanted = set(values)
                places = [i for i in places if not wanted.isdisjoint(self.facets[name][i])]
        return places


def listing(pack: Pack) -> Listing:
    """Prepare a pack for search."""
    texts = [
        "\n".join([one.task_id, one.query, one.category or "", *one.tags, *one.input_files]).lower()
        for one in pack.tasks
    ]
    return Listing(pack, texts, {name: [of(task) for task in pack.tasks] for name, of in FACETS.items()})
