"""Rollouts: attempts of agents at the tasks of a pack, each in a fresh sandbox, verified and stored."""

from __future__ import annotations

from core.rollouts.attempt import OUTCOMES, STATES, Attempt, Outcome, State, prompt_uid
from core.rollouts.runs import Run, RunStore
from core.rollouts.settings import RunSettings
from core.rollouts.workspaces import Change, Removed, StoredFile, Workspace, WorkspaceStore

__all__ = [
    "OUTCOMES",
    "STATES",
    "Attempt",
    "Change",
    "Outcome",
    "Removed",
    "Run",
    "RunSettings",
    "RunStore",
    "State",
    "StoredFile",
    "Workspace",
    "WorkspaceStore",
    "prompt_uid",
]
