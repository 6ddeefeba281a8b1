"""Near-duplicates beside a brute force in plain Python."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np

from core.synthesis.novelty import nearest_kept
from core.synthesis.vectors import tf_idf

WORDS = [f"w{n}" for n in range(30)]


def brute(texts):
    """Cosines by the formula of scikit-learn's documentation, word by word."""
    counts = [Counter(text.split()) for text in texts]
    idf = {w: math.log((1 + len(texts)) / (1 + sum(w in one for one in counts))) + 1 for w in WORDS}
    rows = [{w: (1 + math.log(n)) * idf[w] for w, n in one.items()} for one in counts]
    norms = [math.sqrt(sum(v * v for v in row.values())) for row in rows]
    return [
        [sum(v * b.get(w, 0) for w, v in a.items()) / (x * y) for b, y in zip(rows, norms, strict=True)]
        for a, x in zip(rows, norms, strict=True)
    ]


def test_cosines_are_those_of_the_formula():
    chance = random.Random(1)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(1, 40))) for _ in range(40)]
    matrix = tf_idf(texts)
    assert np.allclose(matrix @ matrix.T, brute(texts), atol=1e-5)


def test_earlier_tasks_of_the_category_are_kept():
    texts = ["sum the sales of march", "Sum the sales of March!", "sum the sales of march", "plant the trees"]
    found = nearest_kept(texts, ["a", "a", "b", "a"], 0.9)
    assert [one.kept for one in found] == [True, False, True, True]
    assert (found[1].index, found[2].index, found[3].index) == (0, None, 0)
    assert found[1].similarity > 0.999 > 0.5 > found[3].similarity
    assert [one.kept for one in nearest_kept(texts, ["a"] * 4, 0.9, always=[1])] == [True, True, False, True]


def test_texts_without_words():
    assert [one.similarity for one in nearest_kept(["", "?"], ["a", "a"], 0.9)] == [None, 0.0]
