"""What is stored of attempts: their final workspaces, the checks of their tasks, and the pool's conversation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import InvalidInput, NotFound
from core.packs.checks import check_of, rubric_of
from core.packs.library import PackLibrary
from core.rewards.base import Unscored
from core.rewards.judging import content_text
from core.rollouts import Attempt, RunStore, WorkspaceStore
from core.rollouts.verifying import needs_payload
from core.scoring.rescore import RestoredAttempt, Wanted


class StoredAttempts:
    """The attempts of a data folder. Thread-safe.

    A trajectory that is no attempt of a run has a conversation only: its workspace is not known.

    Args:
        runs: the runs of rollouts.
        workspaces: their final workspaces.
        packs: the pack versions that they used.
        trajectory: reads one trajectory with its steps, as ``Pool.trajectories.get`` does.
    """

    def __init__(
        self,
        runs: RunStore,
        workspaces: WorkspaceStore,
        packs: PackLibrary,
        trajectory: Callable[[str], Mapping[str, Any]],
    ) -> None:
        self._runs, self._workspaces, self._packs = runs, workspaces, packs
        self._trajectory = trajectory
        self._attempts: dict[str, Attempt] | None = None
        self._lock = threading.Lock()

    def restore(self, wanted: Wanted, workspace: Path, checks: Path) -> RestoredAttempt:
        """See ``core.scoring.rescore.Attempts``."""
        payload = payload_of(self._trajectory(wanted.trajectory_uid))
        attempt = self._attempt(wanted.trajectory_uid)
        if attempt is None or attempt.workspace is None:
            return RestoredAttempt(None, None, payload, has_workspace=False)
        try:
            task = self._packs.get(attempt.pack_version).by_id.get(attempt.task_id)
            stored = self._workspaces.restore(attempt.workspace, workspace)
        except (NotFound, InvalidInput) as error:
            raise Unscored("missing", error.message) from None
        if stored.left_out and any(not _is_link(reason) for reason in stored.left_out.values()):
            names = ", ".join(sorted(stored.left_out)[:3])
            raise Unscored("missing", f"parts of the workspace were not kept: {names}")
        if task is None:
            raise Unscored("missing", f"the pack {attempt.pack_version} has no task {attempt.task_id}")
        check = check_of(task, checks)
        # As at the rollout: a payload is a file of the workspace, which a check may find.
        return RestoredAttempt(check if needs_payload(task) else {**check, "payload": {}}, rubric_of(task), payload)

    def _attempt(self, trajectory_uid: str) -> Attempt | None:
        with self._lock:
            if self._attempts is None or trajectory_uid not in self._attempts:
                self._attempts = {
                    attempt.trajectory_uid: attempt for run in self._runs.all() for attempt in run.attempts()
                }
            return self._attempts.get(trajectory_uid)


def _is_link(reason: str) -> bool:
    """Whether a file was left out because it is a link or no regular file; checks never see these."""
    return "link" in reason or "no regular file" in reason


def payload_of(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    """``final_message``, ``transcript`` and ``metadata`` of a trajectory, for checks.

    The transcript is the conversation of the last answered main step with its answer.
    """
    steps: Sequence[Mapping[str, Any]] = trajectory.get("steps") or ()
    answered = [one for one in steps if one.get("status") in {"ok", "mismatch"} and one.get("messages") is not None]
    main = [one for one in answered if one.get("call_kind") == "main"]
    metadata = {"trajectory_uid": trajectory.get("trajectory_uid"), "prompt_uid": trajectory.get("prompt_uid")}
    if not main:
        return {"final_message": None, "transcript": [], "metadata": metadata}
    answer = main[-1].get("response_message")
    transcript = [*main[-1]["messages"], *([] if answer is None else [answer])]
    final = None if answer is None else content_text(answer.get("content"))
    return {"final_message": final, "transcript": transcript, "metadata": metadata}
