"""Replay an exported batch in OpenRLHF: an agent executor that hands out captured rollouts in place of generating.

This file stands beside the export and needs nothing but Python. Point ``--agent_func_path`` at it, set
``CLAW_REPLAY`` to the exported file, and use the groups' uids (``Replay.prompts``) as prompts.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any


class Replay:
    """The rows of one file by prompt."""

    def __init__(self, path: str) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        with Path(path).open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                self.rows[row["prompt"]].append(row)
        self._next: dict[str, int] = defaultdict(int)

    def __len__(self) -> int:
        return sum(len(rows) for rows in self.rows.values())

    def prompts(self) -> list[str]:
        """The prompts to train on: uids of prompt groups."""
        return list(self.rows)

    def take(self, prompt: str) -> dict[str, Any]:
        """The next captured rollout of a prompt, from the first again after the last."""
        rows = self.rows[prompt]
        row = rows[self._next[prompt] % len(rows)]
        self._next[prompt] += 1
        return row


class AgentExecutor:
    """What OpenRLHF calls for each prompt."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.replay = Replay(os.environ["CLAW_REPLAY"])

    async def execute(self, prompt: str, label: str = "", *_: Any, **__: Any) -> dict[str, Any]:
        """A captured rollout in the shape of a generated one."""
        return self.replay.take(prompt)
