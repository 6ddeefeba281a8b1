"""Token sequences of many steps in one flat array: the input of the tree, the packing and the exporters.

Two steps, prompts ``[5, 6]`` and ``[5]``, responses ``[7]`` and ``[]``::

    ids      5 6 7 | 5
    offsets  0       3   4
    n_prompt 2       1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from core.errors import InvalidInput

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]


def ragged_index(starts: Int64, lengths: Int64) -> Int64:
    """Positions ``starts[i] .. starts[i] + lengths[i] - 1`` of all i, concatenated: int64 [sum(lengths)]."""
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    index: Int64 = np.arange(total, dtype=np.int64) + np.repeat(starts - before, lengths)
    return index


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Full token sequences (prompt, then response) of n steps.

    Attributes:
        ids: int32 [n_tokens], all sequences one after another.
        offsets: int64 [n + 1], sequence i is ``ids[offsets[i]:offsets[i + 1]]``.
        n_prompt: int64 [n], length of the prompt part of each sequence.
        logprobs: float32 [n_tokens], log μ(token) in nats, aligned with ``ids``; NaN on prompt tokens and
            where unknown. None when no sequence has any.
        step_uids: the step that each sequence belongs to, [n].
        parent: int64 [n], index of a sequence with the same first ``n_shared`` tokens; -1 for none. None: sharing is
            unknown until the tokens are compared.
        n_shared: int64 [n], 0 where ``parent`` is -1. It is a lower bound of the common prefix.
        masked: bool [n_tokens], replaced tokens that must not be in a loss; None: there are none.
    """

    ids: Int32
    offsets: Int64
    n_prompt: Int64
    logprobs: Float32 | None
    step_uids: list[str]
    parent: Int64 | None = None
    n_shared: Int64 | None = None
    masked: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        """Refuse arrays that contradict each other; the message names the field."""
        n = len(self.step_uids)
        if self.ids.dtype != np.int32 or self.ids.ndim != 1:
            raise InvalidInput("ids must be a flat int32 array", field="ids")
        if self.offsets.dtype != np.int64 or self.offsets.shape != (n + 1,):
            raise InvalidInput(f"offsets must be int64 of length {n + 1}", field="offsets")
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.ids) or (np.diff(self.offsets) < 0).any():
            raise InvalidInput("offsets must rise from 0 to the number of ids", field="offsets")
        if self.n_prompt.dtype != np.int64 or self.n_prompt.shape != (n,):
            raise InvalidInput(f"n_prompt must be int64 of length {n}", field="n_prompt")
        if (self.n_prompt < 0).any() or (self.n_prompt > self.lengths).any():
            raise InvalidInput("a prompt is longer than its sequence", field="n_prompt")
        if self.logprobs is not None and (self.logprobs.dtype != np.float32 or self.logprobs.shape != self.ids.shape):
            raise InvalidInput("logprobs must be float32 and as long as ids", field="logprobs")
        if self.masked is not None and (self.masked.dtype != np.bool_ or self.masked.shape != self.ids.shape):
            raise InvalidInput("masked must be bool and as long as ids", field="masked")
        if self.parent is not None or self.n_shared is not None:
            self._check_deltas()

    def _check_deltas(self) -> None:
        parent, n_shared, n = self.parent, self.n_shared, len(self)
        if parent is None or parent.dtype != np.int64 or parent.shape != (n,):
            raise InvalidInput(f"parent must be int64 of length {n}", field="parent")
        if n_shared is None or n_shared.dtype != np.int64 or n_shared.shape != (n,):
            raise InvalidInput(f"n_shared must be int64 of length {n}", field="n_shared")
        if n and (parent.min() < -1 or parent.max() >= n):
            raise InvalidInput("a parent is not among the sequences", field="parent")
        max_shared = np.where(parent >= 0, np.minimum(self.lengths, self.lengths[parent] if n else 0), 0)
        if (n_shared < 0).any() or (n_shared > max_shared).any():
            raise InvalidInput("a sequence shares more tokens than it or its parent has", field="n_shared")

    @classmethod
    def from_lists(
        cls,
        prompts: Sequence[ArrayLike],
        responses: Sequence[ArrayLike],
        logprobs: Sequence[ArrayLike | None] | None = None,
        step_uids: Sequence[str] | None = None,
    ) -> Sequences:
        """Build from one prompt and one response per step.

        Args:
            prompts: token ids per step.
            responses: sampled token ids per step, may be empty.
            logprobs: per step None (unknown) or one log-prob per response token.
            step_uids: default ``"0"``, ``"1"``, ...

        Raises:
            InvalidInput: the lists differ in length, or a step's log-probs and response do.
        """
        n = len(prompts)
        if len(responses) != n:
            raise InvalidInput(f"{n} prompts but {len(responses)} responses", field="responses")
        if logprobs is not None and len(logprobs) != n:
            raise InvalidInput(f"{n} prompts but {len(logprobs)} log-prob lists", field="logprobs")
        uids = [str(i) for i in range(n)] if step_uids is None else list(step_uids)
        parts: list[Int32] = []
        scores: list[Float32] = []
        lengths = np.zeros(n, dtype=np.int64)
        n_prompt = np.zeros(n, dtype=np.int64)
        for i in range(n):
            prompt = np.asarray(prompts[i], dtype=np.int32)
            response = np.asarray(responses[i], dtype=np.int32)
            parts += [prompt, response]
            n_prompt[i], lengths[i] = len(prompt), len(prompt) + len(response)
            row = np.full(int(lengths[i]), np.nan, dtype=np.float32)
            step_logprobs = None if logprobs is None else logprobs[i]
            if step_logprobs is not None:
                values = np.asarray(step_logprobs, dtype=np.float32)
                if len(values) != len(response):
                    raise InvalidInput(
                        f"step {uids[i]}: {len(response)} response tokens but {len(values)} log-probs",
                        field="logprobs",
                    )
                row[len(prompt) :] = values
            scores.append(row)
        known = logprobs is not None and any(step_logprobs is not None for step_logprobs in logprobs)
        return cls(
            ids=np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32),
            offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
            n_prompt=n_prompt,
            logprobs=np.concatenate(scores) if known else None,
            step_uids=uids,
        )

    def __len__(self) -> int:
        return len(self.step_uids)

    @property
    def n_tokens(self) -> int:
        """Tokens of all sequences; shared tokens are counted for each sequence."""
        return len(self.ids)

    @property
    def lengths(self) -> Int64:
        """int64 [n]."""
        return np.diff(self.offsets)

    @property
    def n_response(self) -> Int64:
        """int64 [n]."""
        return self.lengths - self.n_prompt

    def sequence(self, i: int) -> Int32:
        """Prompt and response of sequence i, int32 (a view, not a copy)."""
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def response_index(self) -> Int64:
        """Positions in ``ids`` of every response token, in order: int64 [n_response.sum()]."""
        return ragged_index(self.offsets[:-1] + self.n_prompt, self.n_response)

    def take(self, indices: ArrayLike) -> Sequences:
        """The sequences at ``indices``, in that order. A parent that is not among them becomes -1."""
        chosen = np.asarray(indices, dtype=np.int64)
        parent = n_shared = None
        if self.parent is not None and self.n_shared is not None:
            position = np.full(len(self) + 1, -1, dtype=np.int64)  # the last entry is for parent -1
            position[chosen] = np.arange(len(chosen))
            parent = position[self.parent[chosen]]
            n_shared = np.where(parent >= 0, self.n_shared[chosen], 0)
        lengths = self.lengths[chosen]
        index = ragged_index(self.offsets[:-1][chosen], lengths)
        return Sequences(
            ids=self.ids[index],
            offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
            n_prompt=self.n_prompt[chosen],
            logprobs=None if self.logprobs is None else self.logprobs[index],
            step_uids=[self.step_uids[i] for i in chosen.tolist()],
            parent=parent,
            n_shared=n_shared,
            masked=None if self.masked is None else self.masked[index],
        )
