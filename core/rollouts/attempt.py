"""One attempt of an agent at a task of a pack: its identity, its state and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from typing import Any, Literal, get_args

from core.errors import InvalidInput
from core.types import is_uid

MAX_PART, MAX_READABLE = 120, 60
"""Longest id of a task that is a part of uids as it is, and what is kept of a longer one, characters."""

Outcome = Literal["solved", "failed", "timed_out", "crashed", "refused", "lost"]
State = Literal["running", "verifying", "reporting", "done"]

OUTCOMES: Mapping[Outcome, str] = {
    "solved": "the score is above the run's threshold",
    "failed": "the score is not above the threshold",
    "timed_out": "the agent was ended at its time limit; the workspace that it left is scored",
    "crashed": "the agent or the check failed; there is no score",
    "refused": "the attempt could not be made or scored as demanded; there is no score",
    "lost": "the attempt was interrupted; there is no score, and it can be tried again",
}
"""Outcomes and what they mean. Only the first three can have a score."""

STATES: Mapping[State, str] = {
    "running": "the agent works",
    "verifying": "the agent has ended; its workspace is checked",
    "reporting": "the result is stored; the trajectory is being completed",
    "done": "the trajectory is complete",
}
"""States of an attempt, in order. An attempt that was not begun has no record."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. A lost one is tried again under the same ``number`` and the next ``retry``.

    Attributes:
        run: uid of the run.
        pack, pack_version: name and content hash (first 12 digits) of the pack.
        task_id: the task.
        harness: name of the harness.
        number: 0 .. attempts − 1 within task and harness.
        retry: 0 for the first try of this number.
        trajectory_uid: uid of the trajectory with its steps.
        state: see ``STATES``.
        outcome: see ``OUTCOMES``; None until it is known.
        reason: why there is no score, or what ended the agent; None if there is nothing to say.
        score: reward in [0, 1]; None means unscored, which is not 0.
        details: the verifier's details, such as the value of each check.
        isolation: ``core.sandbox.Isolation`` in force, as JSON; None until the sandbox exists.
        wall_s: duration of the agent, seconds.
        cpu_s: processor time of the agent and its processes, seconds; None if unknown.
        memory_bytes: largest memory of the agent and its processes together; None if unknown.
        check_s: duration of the verification, seconds.
        workspace: digest of the final workspace in the ``WorkspaceStore``.
        log: path of the agent's output, relative to the run's folder.
        started_at, ended_at: seconds since the epoch.
    """

    run: str
    pack: str
    pack_version: str
    task_id: str
    harness: str
    number: int
    retry: int
    trajectory_uid: str
    state: State = "running"
    outcome: Outcome | None = None
    reason: str | None = None
    score: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    isolation: Mapping[str, Any] | None = None
    wall_s: float | None = None
    cpu_s: float | None = None
    memory_bytes: int | None = None
    check_s: float | None = None
    workspace: str | None = None
    log: str | None = None
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def prompt_uid(self) -> str:
        """The prompt group: groups are task × harness."""
        return prompt_uid(self.task_id, self.harness)

    @property
    def slot(self) -> tuple[str, int]:
        """Task and number: what this attempt counts for in its run."""
        return self.task_id, self.number

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values, with ``prompt_uid``."""
        return {**asdict(self), "prompt_uid": self.prompt_uid}


FIELDS = frozenset(one.name for one in fields(Attempt))


def parse_attempt(data: Mapping[str, Any]) -> Attempt:
    """An attempt from ``Attempt.to_json``.

    Raises:
        InvalidInput: a field is missing, or state or outcome are unknown.
    """
    values = {name: value for name, value in data.items() if name in FIELDS}
    try:
        attempt = Attempt(**values)
    except TypeError as error:
        raise InvalidInput(f"an attempt is incomplete: {error}", field="attempt") from error
    if attempt.state not in STATES or attempt.outcome not in (*get_args(Outcome), None):
        raise InvalidInput(f"unknown state {attempt.state!r} or outcome {attempt.outcome!r}", field="attempt")
    return attempt


def prompt_uid(task_id: str, harness: str) -> str:
    """The prompt group of a task's attempts with one harness."""
    return f"{uid_part(task_id)}@{harness}"


def uid_part(task_id: str) -> str:
    """The task's id as a part of uids, which have no blanks: as it is, or a readable form with a hash of it."""
    if is_uid(task_id) and len(task_id) <= MAX_PART:
        return task_id
    readable = "".join(char if is_uid(char) else "_" for char in task_id[:MAX_READABLE])
    return f"{readable}~{sha256(task_id.encode()).hexdigest()[:12]}"
