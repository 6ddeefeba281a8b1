"""The demo's task type: a prompt, initial files, and a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Task:
    """One task for an agent.

    Attributes:
        task_uid: stable name; the ``prompt_uid`` of its trajectories.
        prompt: the task's text for the agent.
        input_files: path relative to the workspace -> text.
        check: ``{"verifier": name, ...}`` for ``core.rewards.score``.
    """

    task_uid: str
    prompt: str
    input_files: Mapping[str, str]
    check: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def write_inputs(self, workspace: Path) -> None:
        """Write the input files to ``workspace``.

        Raises:
            InvalidInput: a path is outside the workspace.
        """
        root = workspace.resolve()
        for name, text in self.input_files.items():
            path = (root / name).resolve()
            if not path.is_relative_to(root):
                raise InvalidInput(f"{name} is outside the workspace", field="input_files")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
