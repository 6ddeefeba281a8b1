"""On-policy distillation: a token's advantage is the teacher's log-prob minus that of the sampling policy.

A_t = coef · (log π_teacher − log μ), the negative of the reverse KL's estimate at that token. No reward is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.credit.base import Estimator, Option, always
from core.credit.types import Credit, CreditInput, Needs


def needs(settings: Mapping[str, Any]) -> Needs:
    """Both log-probs of every sampled token."""
    return Needs(exact_tokens=True, fields=("logprobs", "teacher_logprobs"))


def compute(settings: Mapping[str, Any], batch: CreditInput) -> Credit:
    """Token-level differences of log-probs."""
    assert batch.teacher_logprob is not None and batch.token_logprob is not None, "checked by needs"
    token = settings["coef"] * (batch.teacher_logprob - batch.token_logprob)
    return Credit(np.full(len(batch.step_reward), np.nan), None, token=token)


ESTIMATOR = Estimator(
    name="distill",
    title="On-policy distillation",
    formula="A_t = coef · (log π_teacher − log μ) per sampled token",
    needs=needs,
    options={"coef": Option(1.0, "Weight of the log-prob difference", minimum=0)},
    compute=compute,
    within_group=always,
)
