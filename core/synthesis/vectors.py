"""Texts as vectors whose inner product is a similarity: TF-IDF of words."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Vectors = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts -> float32 ``[n_texts, n_dimensions]``, each row of length 1 (or 0 for a text without words)."""


def tf_idf(texts: Sequence[str]) -> NDArray[np.float32]:
    """TF-IDF of lower-case words, float32 ``[n_texts, n_words]``, rows of length 1.

    Weights are ``(1 + ln tf) (ln((1 + n) / (1 + df)) + 1)``, as scikit-learn defines them.
    """
    # Its import takes a second.
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True, dtype=np.float32)
    words = vectorizer.build_analyzer()
    if not any(words(text) for text in texts):
        return np.zeros((len(texts), 1), dtype=np.float32)
    matrix: NDArray[np.float32] = vectorizer.fit_transform(texts).toarray()
    return matrix
