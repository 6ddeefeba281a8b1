"""Training rows of a batch, and the comparison of captured with recomputed log-probs. Standard library only.

A step whose prompt begins with the whole row so far, token for token, continues that row, so shared context occurs once
and every response keeps its loss::

    steps   [1 2] 3        [1 2 3 4] 5 6
    row      1 2  3  4  5 6
    mask     0 0  1  0  1 1

These are the rows that exports write with ``merge=trajectory`` (``core.batch.rows``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import InvalidInput, StudioError

GUARD_LIMIT = 0.01
"""Largest mean |captured − recomputed| of a batch at staleness 0, nats. Engine and trainer of the same weights differ
by 1e-6 to 1e-4 in float32 and by some 1e-3 in bfloat16; log-probs shifted by one token differ by 0.2 and more."""


@dataclass(slots=True)
class Span:
    """One step's response in a row.

    Attributes:
        step: the step's fields, as fetched.
        begin, end: the response is ``ids[begin:end]`` of the row.
    """

    step: dict[str, Any]
    begin: int
    end: int


@dataclass(slots=True)
class TrainingRow:
    """One sequence for a trainer; all lists have one entry per token.

    Attributes:
        ids: token ids.
        mask: 1 on sampled tokens that may be in a loss, else 0.
        logprobs: captured log-probs in nats where ``mask`` is 1; None elsewhere and where unknown.
        advantages: where ``mask`` is 1; None elsewhere and where unassigned.
        returns: the estimator's return where ``mask`` is 1; None elsewhere and where unassigned.
        spans: the steps in the row, in order.
    """

    ids: list[int]
    mask: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    advantages: list[float | None] = field(default_factory=list)
    returns: list[float | None] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def n_prompt(self) -> int:
        """Tokens before the first response."""
        return self.spans[0].begin

    @property
    def prompt_uid(self) -> str:
        """The row's prompt group."""
        uid: str = self.spans[0].step["prompt_uid"]
        return uid

    @property
    def trajectory_uid(self) -> str:
        """The row's trajectory."""
        uid: str = self.spans[0].step["trajectory_uid"]
        return uid


def training_rows(steps: Iterable[dict[str, Any]], *, merge: bool = True) -> list[TrainingRow]:
    """The rows of a batch's steps, in their order.

    Args:
        steps: as in ``Batch.steps``.
        merge: join the steps of a trajectory where they extend; a step that continues several rows extends the longest.
            False: one row per step.

    Raises:
        InvalidInput: a step has no token ids, or its lists differ in length.
    """
    rows: list[TrainingRow] = []
    of_trajectory: dict[str, list[TrainingRow]] = {}
    for step in steps:
        prompt, response = step["prompt_ids"], step["response_ids"]
        if prompt is None or response is None:
            raise InvalidInput(f"step {step['step_uid']!r} has no token ids", field="response_ids")
        siblings = of_trajectory.setdefault(step["trajectory_uid"], [])
        continued = [row for row in siblings if merge and prompt[: len(row.ids)] == row.ids]
        if continued:
            row = max(continued, key=lambda one: len(one.ids))
        else:
            row = TrainingRow([])
            rows.append(row)
            siblings.append(row)
        _context(row, prompt[len(row.ids) :])
        _response(row, step)
    return rows


def _context(row: TrainingRow, ids: Sequence[int]) -> None:
    row.ids += ids
    row.mask += [0] * len(ids)
    for values in (row.logprobs, row.advantages, row.returns):
        values.extend([None] * len(ids))


def _response(row: TrainingRow, step: dict[str, Any]) -> None:
    ids, n = step["response_ids"], len(step["response_ids"])
    mask = [1] * n if step.get("response_mask") is None else [int(counts) for counts in step["response_mask"]]
    row.spans.append(Span(step, len(row.ids), len(row.ids) + n))
    row.ids += ids
    row.mask += _of_length(step, "response_mask", mask)
    for name, per_token, each, values in (
        ("response_logprobs", step.get("response_logprobs"), None, row.logprobs),
        ("token_advantages", step.get("token_advantages"), step.get("advantage"), row.advantages),
        ("token_returns", step.get("token_returns"), step.get("return"), row.returns),
    ):
        known = [each] * n if per_token is None else list(per_token)
        values.extend(x if counts else None for x, counts in zip(_of_length(step, name, known), mask, strict=True))


def _of_length(step: Mapping[str, Any], name: str, values: list[Any]) -> list[Any]:
    n = len(step["response_ids"])
    if len(values) != n:
        raise InvalidInput(f"step {step['step_uid']!r}: {n} response tokens, but {len(values)} {name}", field=name)
    return values


@dataclass(slots=True)
class Difference:
    """Captured against recomputed log-probs of n tokens.

    Attributes:
        n: tokens that have both.
        mean, max: of |captured − recomputed|, nats; None for no tokens.
        kl: estimate of KL(sampling policy ‖ current policy) per token, nats: the mean of exp(d) − 1 − d with
            d = recomputed − captured (k3 of J. Schulman, "Approximating KL divergence"); at least 0. None: no tokens.
    """

    n: int = 0
    mean: float | None = None
    max: float | None = None
    kl: float | None = None

    @classmethod
    def of(cls, differences: Sequence[float]) -> Difference:
        """The summary of recomputed − captured of each token."""
        if not differences:
            return cls()
        absolute = [abs(d) for d in differences]
        # Beyond 50 nats exp(d) says nothing but overflows.
        kl = math.fsum(math.exp(min(d, 50.0)) - 1 - d for d in differences) / len(differences)
        return cls(len(differences), math.fsum(absolute) / len(absolute), max(absolute), kl)

    def metrics(self) -> dict[str, float | None]:
        """By the names that the studio draws: ``logprob_difference_mean``, ``logprob_difference_max``, ``kl``."""
        return {"logprob_difference_mean": self.mean, "logprob_difference_max": self.max, "kl": self.kl}


class LogprobsDiffer(StudioError):
    """A batch's captured log-probs are not those of the weights that are said to have sampled it."""

    type = "logprobs_differ"
    http_status = 409


@dataclass(slots=True)
class Comparison:
    """Captured against recomputed log-probs of a batch.

    Attributes:
        version: version of the weights that recomputed; None: unknown.
        total: over all tokens.
        by_version: by the policy version that sampled the step.
        by_step: by step uid.
    """

    version: int | None
    total: Difference
    by_version: dict[int | None, Difference]
    by_step: dict[str, Difference]

    @property
    def fresh(self) -> Difference:
        """Of the steps that were sampled with the version that recomputed: staleness 0."""
        return self.by_version.get(self.version, Difference())

    def metrics(self) -> dict[str, float | None]:
        """Metrics of the batch for ``ack``."""
        return self.total.metrics()

    def step_metrics(self) -> dict[str, dict[str, float | None]]:
        """Metrics of each step for ``ack``; the studio groups them by the version that sampled the step."""
        return {uid: {**one.metrics(), "n_compared": float(one.n)} for uid, one in self.by_step.items() if one.n}


def compare(rows: Sequence[TrainingRow], recomputed: Sequence[Sequence[float]], version: int | None) -> Comparison:
    """Compare captured with recomputed log-probs.

    Args:
        rows: r training rows.
        recomputed: for each row one log-prob per token, nats; entries where ``mask`` is 0 are ignored.
        version: of the weights that recomputed.

    Raises:
        InvalidInput: the lists differ in length.
    """
    if len(rows) != len(recomputed):
        raise InvalidInput(f"{len(rows)} rows, but log-probs of {len(recomputed)}", field="recomputed")
    by_step: dict[str, list[float]] = {}
    by_version: dict[int | None, list[float]] = {}
    for number, (row, values) in enumerate(zip(rows, recomputed, strict=True)):
        if len(values) != len(row.ids):
            raise InvalidInput(
                f"row {number} has {len(row.ids)} tokens, but {len(values)} log-probs", field="recomputed"
            )
        for span in row.spans:
            some = [
                float(values[i]) - captured
                for i in range(span.begin, span.end)
                if row.mask[i] and (captured := row.logprobs[i]) is not None
            ]
            by_step.setdefault(span.step["step_uid"], []).extend(some)
            by_version.setdefault(span.step.get("policy_version"), []).extend(some)
    return Comparison(
        version,
        Difference.of([d for some in by_version.values() for d in some]),
        {sampled: Difference.of(some) for sampled, some in by_version.items()},
        {uid: Difference.of(some) for uid, some in by_step.items()},
    )


@dataclass(frozen=True, slots=True)
class Guard:
    """Refuses a batch whose captured log-probs are not those of the weights that sampled it. Call it with a comparison.

    Attributes:
        limit: largest mean |captured − recomputed| at staleness 0, nats.
    """

    limit: float = GUARD_LIMIT

    def __call__(self, comparison: Comparison) -> None:
        """Check the steps of staleness 0; of older steps the log-probs differ because the weights do.

        Raises:
            LogprobsDiffer: their mean difference exceeds the limit.
        """
        fresh = comparison.fresh
        if fresh.mean is None or fresh.mean <= self.limit:
            return
        raise LogprobsDiffer(
            f"captured and recomputed log-probs of version {comparison.version} differ by {fresh.mean:.3g} nats on "
            f"average over {fresh.n} tokens (at most {fresh.max:.3g}); the limit is {self.limit:g}",
            field="response_logprobs",
            hint="engine and trainer have different weights, another temperature, or log-probs of other positions",
        )
