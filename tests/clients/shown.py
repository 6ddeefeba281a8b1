"""What the pages show of what was captured."""

from __future__ import annotations

from typing import Any


def task_of(http: Any) -> dict[str, str]:
    """trajectory_uid -> the beginning of its task, as lists show it."""
    answer = http.post(
        "/api/v1/sql", json={"sql": "SELECT trajectory_uid, prompt_preview FROM trajectory_state"}
    ).json()
    return dict(answer["rows"])
