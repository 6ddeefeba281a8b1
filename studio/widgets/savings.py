"""What sharing prefixes saves, told by prompt group, by step of a trajectory, or by agent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from core.batch.plan import Plan
from core.types import View
from studio import state


def savings(made: Plan, by: str) -> list[dict[str, Any]]:
    """One row per group, step index or agent: ``name, trajectories, steps, tokens, packed, ratio, saved``.

    Sums are those of the plan's layout: each step's share is the tokens that it adds to its row.
    """
    if by == "group":  # in plan order, as the chart has them
        names, number = np.array(group_names(made)), made.steps["group"].to_numpy()
    else:
        names, number = np.unique(_names(made, by), return_inverse=True)
    n = len(names)
    tokens = np.bincount(number, made.lengths, minlength=n).astype(np.int64).tolist()
    packed = np.bincount(number, made.layout.step_packed, minlength=n).astype(np.int64).tolist()
    steps = np.bincount(number, minlength=n).tolist()
    pairs = np.unique(np.stack([number, made.steps["trajectory"].to_numpy()]), axis=1)
    trajectories = np.bincount(pairs[0], minlength=n).tolist()
    return [
        {
            "name": name,
            "trajectories": trajectories[i],
            "steps": steps[i],
            "tokens": tokens[i],
            "packed": packed[i],
            "ratio": packed[i] / tokens[i] if tokens[i] else None,
            "saved": tokens[i] - packed[i],
        }
        for i, name in enumerate(names.tolist())
    ]


def group_names(made: Plan) -> list[str]:
    """The plan's prompt groups in plan order."""
    return list(dict.fromkeys(made.trajectories["prompt_uid"].to_pylist()))


def _names(made: Plan, by: str) -> np.ndarray[Any, Any]:
    """What each plan step is counted under."""
    if by == "step":
        return made.steps["step_index"].to_numpy().astype(np.int64)
    rows = state.service().pool.steps(View({"prompt_uid": group_names(made)}), limit=None)
    agent = dict(zip(rows["step_uid"].to_pylist(), rows["agent"].to_pylist(), strict=True))
    uids: pa.ChunkedArray = made.steps["step_uid"]
    return np.array([agent.get(uid) or "unknown" for uid in uids.to_pylist()])
