"""Vectors of texts by a model: stored in the log of the run, so that none is asked for twice."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.rewards.base import Unscored
from core.synthesis.asking import Asker, Stopped
from core.synthesis.log import LogWriter
from core.synthesis.rows import digest
from core.synthesis.state import EMBEDDING, State

AT_ONCE = 64
"""Most texts of one request."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """An answer: one vector for each text, prompt tokens and price in US dollars; None where they are not known."""

    vectors: Sequence[Sequence[float]]
    n_tokens: int | None
    cost_usd: float | None


Embed = Callable[[Sequence[str]], Embedded]
"""Texts -> their vectors; raises ``Unscored`` if the engine gives none."""


class Embeddings:
    """Texts as vectors of the model of a run (``core.synthesis.vectors.Vectors``).

    Args:
        model: name of the model, which enters the key of a stored vector.
        embed: asks the engine.
        asker: its budget counts these requests too.
    """

    def __init__(self, model: str, embed: Embed, asker: Asker, state: State, writer: LogWriter) -> None:
        self._model, self._embed, self._asker = model, embed, asker
        self._state, self._writer = state, writer

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Float32 ``[n_texts, n_dimensions]``, rows of length 1.

        Raises:
            Stopped: the budget is spent, the run was cancelled, or the engine gives no vectors.
        """
        keys = [digest([self._model, text])[:24] for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._state.vectors}
        todo = list(missing.items())
        for at in range(0, len(todo), AT_ONCE):
            self._ask(todo[at : at + AT_ONCE])
        rows = [np.frombuffer(self._state.vectors[key], dtype="<f4") for key in keys]
        if len({len(row) for row in rows}) > 1:
            raise self._stopped("its vectors have different lengths")
        matrix = np.stack(rows).astype(np.float32) if rows else np.zeros((0, 1), dtype=np.float32)
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        lengths[lengths == 0] = 1
        unit: NDArray[np.float32] = np.divide(matrix, lengths).astype(np.float32)
        return unit

    def _ask(self, entries: Sequence[tuple[str, str]]) -> None:
        with self._asker.within_budget():
            try:
                answer = self._embed([text for _, text in entries])
            except Unscored as error:
                raise self._stopped(str(error)) from error
            rows = [np.asarray(row, dtype="<f4") for row in answer.vectors]
            if len(rows) != len(entries) or not all(len(row) and np.isfinite(row).all() for row in rows):
                raise self._stopped(f"{len(rows)} vectors for {len(entries)} texts, or one is empty or not finite")
            packed = [base64.b64encode(row.tobytes()).decode() for row in rows]
            vectors = {key: one for (key, _), one in zip(entries, packed, strict=True)}
            record: dict[str, Any] = {"kind": EMBEDDING, "model": self._model, "vectors": vectors}
            record |= {"n_tokens": answer.n_tokens, "cost_usd": answer.cost_usd}
            self._writer.write(record)
            self._state.apply(record)

    def _stopped(self, reason: str) -> Stopped:
        return Stopped(
            f"the model {self._model} gives no embeddings: {reason}",
            field="embedding_model",
            hint="name a model that an engine embeds with; without one, words are compared",
        )
