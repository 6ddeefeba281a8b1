"""Verifies the workspace that an agent left: its task's check, in a new sandbox on a copy."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from core.client import StudioClient
from core.errors import NotFound, Overloaded, StudioError
from core.packs.checks import check_of, rubric_of
from core.packs.model import ANSWER, GRADE, PackTask
from core.rewards import Score, score
from core.rewards.run import stopped_when
from core.rollouts.settings import RunSettings

PAYLOAD = b"OPENCLAW_REWARD_PAYLOAD"
INGEST_S = 120.0
POLL_S = 0.1
NO_CHECK = {
    True: "the task has a rubric and no check by code: score the run again with a judge, on the page Datasets",
    False: "the task has neither a check nor a rubric: people can label its trajectories",
}
"""Whether the task has a rubric -> why a run gives it no score."""


def verify(
    task: PackTask,
    workspace: Path,
    settings: RunSettings,
    payload: Mapping[str, Any],
    should_stop: Callable[[], bool] = lambda: False,
) -> Score:
    """The score of a workspace by the task's own check.

    A check that can't be run, whatever the reason, gives a score without a value and with an error.

    Args:
        workspace: the folder that the agent left; it is copied.
        payload: ``final_message``, ``transcript`` and ``metadata`` of the attempt, as far as they are known.
        should_stop: asked several times a second; True ends the check.
    """
    if task.checker is None:
        return Score(None, error=NO_CHECK[rubric_of(task) is not None], outcome="refused")
    with tempfile.TemporaryDirectory(prefix="claw-check-") as folder:
        spec = {**check_of(task, Path(folder)), "isolation": settings.isolation, "payload": dict(payload)}
        if settings.check_time_s is not None:
            spec["timeout_s"] = settings.check_time_s
        try:
            with stopped_when(should_stop):
                return score(workspace, spec)
        except StudioError as error:
            return Score(None, error=f"the check can't be run: {error.message}", outcome="refused")


def needs_payload(task: PackTask) -> bool:
    """Whether the check reads the conversation, and not only the workspace."""
    return task.checker in {ANSWER, GRADE} or any(PAYLOAD in one.content for one in task.checker_files.values())


def await_ingest(studio: StudioClient, since: float) -> None:
    """Wait until every call that was recorded before ``since`` (``time.monotonic``) is in the pool.

    Raises:
        Overloaded: ingest is too far behind.
    """
    deadline = time.monotonic() + INGEST_S
    while True:
        studio.known([])  # makes the studio read its journal
        asked_at = time.monotonic()
        if studio.stats()["ingest_lag_s"] < asked_at - since:
            return
        if time.monotonic() > deadline:
            raise Overloaded(f"ingest is more than {INGEST_S:g} s behind", hint="see the studio's log; resume the run")
        time.sleep(POLL_S)


def payload_of(studio: StudioClient, trajectory_uid: str) -> dict[str, Any]:
    """``{final_message, transcript}`` of a trajectory: the newest main call with its messages; empty without one."""
    main = [one["step_uid"] for one in _answered(studio, trajectory_uid) if one["call_kind"] == "main"]
    if not main:
        return {}
    step = studio.step(main[-1])
    answer = step["response_message"] or {}
    return {
        "final_message": _text(answer.get("content")),
        "transcript": [*(step["messages"] or ()), answer],
        "metadata": step["metadata"],
    }


def n_answered(studio: StudioClient, trajectory_uid: str) -> int:
    """Number of model calls of a trajectory that the engine answered, as far as they are in the pool."""
    return len(_answered(studio, trajectory_uid))


def _answered(studio: StudioClient, trajectory_uid: str) -> list[dict[str, Any]]:
    try:
        steps = studio.trajectory(trajectory_uid)["steps"]
    except NotFound:
        return []
    return [one for one in steps if one["status"] in {"ok", "mismatch"}]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if isinstance(part, Mapping))
