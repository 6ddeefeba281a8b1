"""Finds near-duplicate tasks: pairs whose queries share most of their word triples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from core.packs.lint.finding import NOTE, Finding
from core.packs.model import PackTask

THRESHOLD = 0.8
N_WORDS = 3
_WORD = re.compile(r"\w+")


def triples(text: str) -> set[str]:
    """All runs of three words, in lower case; a shorter text is one run."""
    words = _WORD.findall(text.lower())
    return {" ".join(words[at : at + N_WORDS]) for at in range(max(1, len(words) - N_WORDS + 1))}


def similar_pairs(texts: Sequence[str], threshold: float = THRESHOLD) -> list[tuple[int, int, float]]:
    """All pairs with a Jaccard index |A ∩ B| / |A ∪ B| of their word triples of at least ``threshold``.

    Exact: for each text, the texts that share a triple are counted from an index of triples.

    Returns:
        ``(i, j, similarity)`` with i < j, most similar first.
    """
    if not texts:
        return []
    numbers: dict[str, int] = {}
    sets = [
        np.array(sorted(numbers.setdefault(one, len(numbers)) for one in triples(text)), dtype=np.int64)
        for text in texts
    ]
    sizes = np.array([len(one) for one in sets], dtype=np.int64)
    members = np.concatenate(sets)
    owners = np.repeat(np.arange(len(sets)), sizes)[np.argsort(members, kind="stable")]
    ends = np.cumsum(np.bincount(members, minlength=len(numbers)))
    index = np.split(owners, ends[:-1])
    pairs: list[tuple[int, int, float]] = []
    for i, own in enumerate(sets):
        shared = np.bincount(np.concatenate([index[one] for one in own]), minlength=len(sets))
        similarity = shared / (sizes[i] + sizes - shared)
        pairs += [(i, int(j), float(similarity[j])) for j in np.flatnonzero(similarity >= threshold) if j > i]
    return sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1]))


def near_duplicates(tasks: Sequence[PackTask], threshold: float = THRESHOLD) -> Iterator[Finding]:
    """A finding for every pair of near-duplicates."""
    queries = ["\n".join([task.query, *(str(one.get("prompt", "")) for one in task.sessions[1:])]) for task in tasks]
    for i, j, similarity in similar_pairs(queries, threshold):
        same = task_files(tasks[i]) == task_files(tasks[j])
        message = (
            f"the queries of {tasks[i].task_id} and {tasks[j].task_id} share {similarity:.0%} of their word triples"
        )
        message += "; the input files are the same" if same else "; the input files differ"
        yield Finding("near_duplicate", NOTE, (tasks[i].task_id, tasks[j].task_id), message, round(similarity, 4))


def task_files(task: PackTask) -> dict[str, str]:
    """Path -> hash of the input files."""
    return {path: one.sha256 for path, one in task.input_files.items()}
