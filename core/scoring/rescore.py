"""Scores the trajectories of a view again, from what is stored of their attempts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from core.errors import StudioError
from core.rewards import Score, Services, score
from core.rewards.base import Unscored
from core.scoring.results import RUBRIC, TASK, Rescoring, Result


@dataclass(frozen=True, slots=True)
class Wanted:
    """A trajectory to score: its uid, effective reward and channel."""

    trajectory_uid: str
    old: float | None
    channel: str = ""


@dataclass(frozen=True, slots=True)
class RestoredAttempt:
    """What is stored of an attempt.

    Attributes:
        check: the task's own check, for ``core.rewards.score``; None if the task is not known.
        rubric: the task's rubric as a check, or None.
        payload: ``final_message``, ``transcript`` and ``metadata``, as far as they are known.
        has_workspace: the final workspace was restored.
    """

    check: Mapping[str, Any] | None
    rubric: Mapping[str, Any] | None
    payload: Mapping[str, Any]
    has_workspace: bool = True


def reads_workspace(check: Mapping[str, Any]) -> bool:
    """Whether a check reads files that the agent left, and not only its messages."""
    name = check.get("verifier")
    if name == "every":
        return any(map(reads_workspace, check.get("checks", ())))
    if name in {"final_answer", "final_number", "json_schema", "regex"}:
        return check.get("path") is not None
    if name == "rubric":
        return bool(check.get("rules"))
    return name not in {"human", "next_state"}


class Attempts(Protocol):
    """Where attempts are stored."""

    def restore(self, wanted: Wanted, workspace: Path, checks: Path) -> RestoredAttempt:
        """Write the final workspace to the empty folder ``workspace``, and the check's files below ``checks``.

        Raises:
            Unscored: what was kept of this attempt is damaged or gone (``missing``).
        """


def rescore(
    rescoring: Rescoring,
    wanted: Sequence[Wanted],
    attempts: Attempts,
    services: Services,
    *,
    workers: int = 2,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Score every trajectory as often as the settings say; what has a result already is left out.

    Args:
        rescoring: where the results are appended.
        wanted: the trajectories.
        services: judge and callbacks.
        workers: trajectories at the same time.
        should_stop: checked before each score.
    """
    rescoring.repair()
    done = {(one.trajectory_uid, one.repeat) for one in rescoring.results()}
    jobs = [
        (one, repeat)
        for one in wanted
        for repeat in range(rescoring.settings.repeats)
        if (one.trajectory_uid, repeat) not in done
    ]
    with ThreadPoolExecutor(workers, thread_name_prefix="rescore") as pool:
        running: set[Future[Result]] = set()
        for one, repeat in jobs:
            if should_stop():
                break
            running.add(pool.submit(_result, rescoring, one, repeat, attempts, services))
            if len(running) >= 2 * workers:
                running = _drain(rescoring, running)
        while running:
            running = _drain(rescoring, running)


def _drain(rescoring: Rescoring, running: set[Future[Result]]) -> set[Future[Result]]:
    """Store what has ended; what has not is returned."""
    ended, rest = wait(running, return_when=FIRST_COMPLETED)
    for future in ended:
        rescoring.append(future.result())
    return rest


def _result(rescoring: Rescoring, one: Wanted, repeat: int, attempts: Attempts, services: Services) -> Result:
    """One score as a result; every failure is one too."""
    try:
        scored = _score(rescoring, one, repeat, attempts, services)
    except Unscored as unscored:
        scored = unscored.score
    except StudioError as error:
        scored = Score(None, error=error.message, outcome="refused")
    except Exception as error:  # a failure of one must not end the others
        scored = Score(None, error=f"{type(error).__name__}: {error}", outcome="crashed")
    return Result(one.trajectory_uid, repeat, one.old, channel=one.channel, **scored.as_dict())


def _score(rescoring: Rescoring, one: Wanted, repeat: int, attempts: Attempts, services: Services) -> Score:
    verifier = rescoring.settings.verifier
    with tempfile.TemporaryDirectory(prefix="claw-rescore-") as folder:
        workspace = Path(folder, "workspace")
        workspace.mkdir()
        restored = attempts.restore(one, workspace, Path(folder, "check"))
        named = {TASK: restored.check, RUBRIC: restored.rubric}
        check = named.get(verifier) if isinstance(verifier, str) else verifier
        if check is None:
            what = "rubric" if verifier == RUBRIC and restored.check is not None else "task"
            raise Unscored("missing", f"no {what} is kept of this trajectory")
        if not restored.has_workspace and reads_workspace(check):
            raise Unscored("missing", "no workspace is kept of this trajectory")
        # A repeat asks a judge anew: the number is part of what is stored of its answers.
        shared = {"isolation": rescoring.settings.isolation, "payload": restored.payload, "repeat": repeat}
        return score(workspace, {**shared, **check}, services)
