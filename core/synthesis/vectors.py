"""Texts as vectors whose inner product is a similarity: TF-IDF of words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Vectors = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts -> float32 ``[n_texts, n_dimensions]``, each row of length 1 (or 0 for a text without words)."""
_WORD = re.compile(r"\w+")


def tf_idf(texts: Sequence[str]) -> NDArray[np.float32]:
    """TF-IDF of lower-case words, float32 ``[n_texts, n_words]``, rows of length 1.

    Weights are ``(1 + ln tf) (ln((1 + n) / (1 + df)) + 1)``: scikit-learn's ``TfidfVectorizer`` with
    ``sublinear_tf`` and its smoothed idf.
    """
    counts = [Counter(_WORD.findall(text.lower())) for text in texts]
    columns = {word: at for at, word in enumerate(sorted(set().union(*counts)))}
    matrix = np.zeros((len(texts), len(columns)), dtype=np.float32)
    for row, words in enumerate(counts):
        places = [columns[word] for word in words]
        matrix[row, places] = 1.0 + np.log(np.array(list(words.values()), dtype=np.float32))
    document_counts = np.count_nonzero(matrix, axis=0)
    matrix *= (np.log((1.0 + len(texts)) / (1.0 + document_counts)) + 1.0).astype(np.float32)
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    np.divide(matrix, lengths, out=matrix, where=lengths > 0)
    return matrix
