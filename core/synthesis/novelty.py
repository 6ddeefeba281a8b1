"""Finds tasks that are nearly the same as an earlier task of their category."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from core.synthesis.vectors import Vectors, tf_idf


@dataclass(frozen=True, slots=True)
class Nearest:
    """The most similar earlier task that was kept.

    Attributes:
        kept: whether this task is kept too.
        index: position of the nearest one; None if no task of the category was kept before.
        similarity: cosine, in [0, 1]; None without a nearest one.
    """

    kept: bool
    index: int | None
    similarity: float | None


def nearest_kept(
    texts: Sequence[str],
    categories: Sequence[str],
    threshold: float,
    *,
    always: Collection[int] = (),
    vectors: Vectors = tf_idf,
) -> list[Nearest]:
    """For each text its nearest earlier text that is kept, in order; it is kept if that is less similar.

    ClawGym's rule: a text is compared with the kept texts of its category, and removed at ``threshold`` or above.

    Args:
        texts, categories: the tasks in order.
        threshold: lowest cosine of a duplicate, in [0, 1].
        always: positions that are kept whatever their similarity.
        vectors: how texts become vectors.
    """
    neighbours: list[Nearest] = [Nearest(True, None, None)] * len(texts)
    for category in sorted(set(categories)):
        members = [at for at, one in enumerate(categories) if one == category]
        matrix = vectors([texts[at] for at in members])
        kept: list[int] = []
        for row, at in enumerate(members):
            nearest, similarity = None, None
            if kept:
                cosines = matrix[kept] @ matrix[row]
                best = int(np.argmax(cosines))
                nearest, similarity = members[kept[best]], float(cosines[best])
            keep = similarity is None or similarity < threshold or at in always
            neighbours[at] = Nearest(keep, nearest, similarity)
            if keep:
                kept.append(row)
    return neighbours
