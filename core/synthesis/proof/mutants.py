"""Mutants of a right result: a file missing, a value changed, an answer hard-coded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from core.packs.model import Files, PackFile

MISSING, CHANGED, CONSTANT = "file_missing", "value_changed", "hard_coded"
KINDS = {
    MISSING: "one file that the solution made is missing; one that it changed is as before",
    CHANGED: "one number in one file is larger by 1; in a text without numbers, one word is spelled backwards",
    CONSTANT: "in all files of the solution every number is 0, and every other value a constant",
}
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\.?\w)")
_WORD = re.compile(r"[^\W\d_]{3,}")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A workspace that is wrong in one way: a key of ``KINDS``, the path, what was changed, and all files."""

    kind: str
    path: str
    change: str
    files: Files


def mutants(before: Files, after: Files, changed: Sequence[str], limit: int) -> list[Mutant]:
    """At most ``limit`` mutants of the workspace ``after``: first one with a constant, then missing files and values.

    Args:
        before: the untouched workspace.
        after: the workspace that the solution left.
        changed: the paths in which they differ.
    """
    made = [*_constant(after, changed)]
    by_path = [[*_missing(before, after, path), *_values(after, path, limit)] for path in changed]
    for rank in range(max((len(one) for one in by_path), default=0)):
        made += [one[rank] for one in by_path if rank < len(one)]
    return made[:limit]


def _constant(after: Files, changed: Sequence[str]) -> Iterator[Mutant]:
    files = dict(after)
    for path in changed:
        text = after[path].text
        content = b"" if text is None else _flat(text).encode()
        files[path] = PackFile(content, after[path].executable)
    if any(files[path].content != after[path].content for path in changed):
        yield Mutant(CONSTANT, ", ".join(changed), "every value is a constant", files)


def _flat(text: str) -> str:
    """The text with every number 0; without numbers, with every word of three letters or more ``answer``."""
    return _NUMBER.sub("0", text) if _NUMBER.search(text) else _WORD.sub("answer", text)


def _missing(before: Files, after: Files, path: str) -> Iterator[Mutant]:
    files = {name: one for name, one in after.items() if name != path}
    if path in before:
        yield Mutant(MISSING, path, "the file is as before", {**files, path: before[path]})
    else:
        yield Mutant(MISSING, path, "the file is missing", files)


def _values(after: Files, path: str, limit: int) -> Iterator[Mutant]:
    """Mutants with one value changed each, spread over the file."""
    text = after[path].text
    if text is None:
        return
    places = [*_NUMBER.finditer(text)]
    change = _larger if places else _backwards
    places = places or [*_WORD.finditer(text)]
    chosen = [places[at * len(places) // limit] for at in range(limit)] if len(places) > limit else places
    for place in chosen:
        value = change(place[0])
        if value != place[0]:
            content = (text[: place.start()] + value + text[place.end() :]).encode()
            files = {**after, path: PackFile(content, after[path].executable)}
            yield Mutant(CHANGED, path, f"{place[0]} → {value}", files)


def _larger(number: str) -> str:
    whole, dot, fraction = number.partition(".")
    return f"{int(whole) + 1}{dot}{fraction}"


def _backwards(word: str) -> str:
    return word[::-1]
