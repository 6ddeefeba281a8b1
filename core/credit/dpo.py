"""DPO pairs: a better and a worse trajectory of one prompt. (arXiv 2305.18290.)

``best_worst`` gives one pair per group, ``all`` every pair that differs by more than ``margin``, widest first.
Trajectories that are in no pair are excluded from the plan. An answer that a person edited and the captured one are a
pair as well (``core.batch.edits``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from core.credit.base import EDITS, Estimator, Option
from core.credit.types import Bools, CreditInput, Ints, Needs, Pairs


def needs(settings: Mapping[str, Any]) -> Needs:
    """Two scored trajectories of a prompt; ids need not be the sampled ones."""
    return Needs(rewards=True, min_group_size=2)


def pairs(settings: Mapping[str, Any], batch: CreditInput) -> Pairs:
    """Pairs in the order of groups, the widest margin of a group first."""
    chosen: list[int] = []
    rejected: list[int] = []
    order = np.argsort(batch.group, kind="stable")
    borders = np.flatnonzero(np.diff(batch.group[order])) + 1
    for members in np.split(order, borders) if len(order) else []:
        for better, worse in _of_group(settings, members, batch):
            chosen.append(better)
            rejected.append(worse)
    better_ids, worse_ids = np.array(chosen, dtype=np.int64), np.array(rejected, dtype=np.int64)
    return Pairs(better_ids, worse_ids, batch.reward[better_ids] - batch.reward[worse_ids])


def _of_group(settings: Mapping[str, Any], members: Ints, batch: CreditInput) -> list[tuple[int, int]]:
    reward = batch.reward[members]
    if settings["pairing"] == "best_worst":
        best, worst = int(np.argmax(reward)), int(np.argmin(reward))
        selected = [(best, worst)] if reward[best] - reward[worst] > settings["margin"] else []
    else:
        difference = reward[:, None] - reward[None, :]
        rows, columns = np.nonzero(difference > settings["margin"])
        widest = np.lexsort((columns, rows, -difference[rows, columns]))
        selected = [(int(rows[i]), int(columns[i])) for i in widest]
    if settings["max_pairs"] is not None:
        selected = selected[: settings["max_pairs"]]
    return [(int(members[a]), int(members[b])) for a, b in selected]


def select(settings: Mapping[str, Any], batch: CreditInput) -> Bools:
    """bool [n], the trajectories that are in a pair."""
    chosen = pairs(settings, batch)
    kept = np.zeros(len(batch.reward), dtype=np.bool_)
    kept[chosen.chosen] = kept[chosen.rejected] = True
    return kept


ESTIMATOR = Estimator(
    name="dpo",
    title="DPO pairs",
    formula="chosen and rejected of one prompt, R_chosen − R_rejected > margin; no advantage",
    needs=needs,
    options={
        "pairing": Option(
            "best_worst",
            "best_worst: one pair per group (default); all: every pair with enough margin",
            choices=("best_worst", "all"),
        ),
        "margin": Option(0.0, "Rewards of a pair must differ by more than this", minimum=0),
        "max_pairs": Option(None, "Most pairs per group, widest margin first", minimum=1, optional=True, integer=True),
        "edits": EDITS,
    },
    select=select,
    pairs=pairs,
)
