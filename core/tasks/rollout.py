"""Runs one rollout of the demo: creates a session and a workspace, runs the agent and the check, reports the reward."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.client import StudioClient
from core.rewards import Score, score
from core.tasks.demo_agent import run_agent
from core.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Rollout:
    """The result of one rollout.

    ``outcome``: that of the agent (``finished``, ``stopped``, ``max_turns``, ``interrupted``) or ``error``.
    ``score`` is None unless the agent finished; ``error`` is the reason of a failure.
    """

    task_uid: str
    trajectory_uid: str
    outcome: str
    n_turns: int
    score: Score | None
    error: str | None = None


def run_rollout(
    studio: StudioClient,
    task: Task,
    *,
    model: str,
    seed: int | None = None,
    max_turns: int = 10,
    max_tokens: int | None = None,
    channel: str | None = None,
    trajectory_uid: str | None = None,
    tls: ssl.SSLContext | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Rollout:
    """Let the demo agent attempt ``task`` once and report the reward.

    The check runs after the agent has stopped. After an engine failure, the trajectory is completed without a reward,
    because a failure is not a score of 0. An interrupted trajectory stays open.

    Raises:
        StudioError: the studio refused the session or the completion.
    """
    from openai import OpenAIError

    session = studio.session(
        trajectory_uid=trajectory_uid,
        prompt_uid=task.task_uid,
        channel=channel,
        agent="demo-agent",
        metadata={"task": task.task_uid, "seed": seed, **task.metadata},
    )
    with tempfile.TemporaryDirectory(prefix="claw-demo-") as folder:
        workspace = Path(folder)
        task.write_inputs(workspace)
        try:
            result = run_agent(
                base_url=session.base_url,
                api_key=session.api_key,
                model=model,
                prompt=task.prompt,
                workspace=workspace,
                max_turns=max_turns,
                max_tokens=max_tokens,
                seed=seed,
                tls=tls,
                should_stop=should_stop,
            )
        except OpenAIError as error:
            studio.complete(session.trajectory_uid, reward=None, outcome="error")
            return Rollout(task.task_uid, session.trajectory_uid, "error", 0, None, f"{error}")
        if result.outcome == "interrupted":
            return Rollout(task.task_uid, session.trajectory_uid, result.outcome, result.n_turns, None)
        judged = score(workspace, task.check)
    reasons = {"verifier": task.check.get("verifier"), "reward_details": dict(judged.details)}
    studio.complete(session.trajectory_uid, reward=judged.value, outcome=result.outcome, metadata=reasons)
    return Rollout(task.task_uid, session.trajectory_uid, result.outcome, result.n_turns, judged, judged.error)
