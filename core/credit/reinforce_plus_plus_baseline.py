"""REINFORCE++ with a group baseline: R minus the group's mean, whitened over all sampled tokens.

In the group's mean each trajectory counts once; in the whitening it counts by its number of sampled tokens, as in verl
and StepPO. (arXiv 2501.03262.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.credit.base import SINGLETON, Estimator, centred, group_size_needs, raw_singletons
from core.credit.chain import whiten_tokens
from core.credit.types import Credit, CreditInput


def compute(settings: Mapping[str, Any], batch: CreditInput) -> Credit:
    """Whitened group-centred scores."""
    deviation, sizes = centred(batch)
    scores = raw_singletons(settings, batch, sizes, deviation)
    n_tokens = np.bincount(batch.step_trajectory, weights=batch.n_tokens, minlength=len(scores)).astype(np.int64)
    values = whiten_tokens(scores, n_tokens)
    return Credit(step=values[batch.step_trajectory], trajectory=values)


ESTIMATOR = Estimator(
    name="reinforce_plus_plus_baseline",
    title="REINFORCE++ baseline",
    formula="A = whitened (R − group mean) over all sampled tokens",
    needs=group_size_needs,
    options={"singleton": SINGLETON},
    compute=compute,
)
