"""The step that follows a step, where the results of its tool calls are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.pool import Pool


def continuation(pool: Pool, step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The first child of ``step`` with its messages, or an empty list: its messages hold the results of the calls."""
    family = pool.trajectories.get(str(step["trajectory_uid"]), tokens=False)["steps"]
    children = [row["step_uid"] for row in family if row.get("parent_step_uid") == step["step_uid"]]
    return [pool.steps.get(uid) for uid in children[:1]]
