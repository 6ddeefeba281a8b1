"""Replays an exported batch in OpenRLHF: an agent executor that returns captured rollouts instead of generating.

This file is written beside the export and needs only OpenRLHF. Set ``CLAW_REPLAY`` to the exported file, and the agent
function's path to this file. Train on the prompts that this program writes, with the samples per prompt that it
prints::

    python openrlhf_replay.py openrlhf-....jsonl prompts.jsonl
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from openrlhf.utils.agent import AgentExecutorBase


class Replay:
    """The rows of one file by prompt.

    Attributes:
        rows: uid of a prompt group -> its rows.
        n_samples: rows of each group.
    """

    def __init__(self, path: str) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        with Path(path).open(encoding="utf-8") as lines:
            for line in lines:
                row = json.loads(line)
                self.rows[row["prompt"]].append(row)
        self.n_samples = max(map(len, self.rows.values()), default=0)

    def write_prompts(self, path: str) -> None:
        """Write the prompts to train on: uids of groups, under OpenRLHF's key ``input``."""
        Path(path).write_text("".join(json.dumps({"input": uid}) + "\n" for uid in self.rows), encoding="utf-8")


class AgentExecutor(AgentExecutorBase):  # type: ignore[misc]
    """The executor that OpenRLHF calls for each sample of a prompt. The samples of a prompt take each row once.

    Raises:
        ValueError: the number of samples differs from the group's rows, or OpenRLHF would cut a row.
    """

    def __init__(self) -> None:
        self.replay = Replay(os.environ["CLAW_REPLAY"])
        self._n_requested: dict[str, int] = defaultdict(int)

    async def execute(
        self, prompt: str, label: Any, sampling_params: Any, max_length: int, *_: Any, **__: Any
    ) -> dict[str, Any]:
        """The captured rollout in the format of a generated one."""
        rows = self.replay.rows[prompt]
        number = self._n_requested[prompt]
        self._n_requested[prompt] += 1
        # OpenRLHF requests all samples of a prompt at once, so after this all of them have started.
        await asyncio.sleep(0)
        if self._n_requested[prompt] != len(rows):
            n_requested = self._n_requested[prompt]
            raise ValueError(
                f"{n_requested} samples of prompt {prompt!r} were requested, and {len(rows)} were captured"
            )
        await asyncio.sleep(0)
        self._n_requested[prompt] = 0
        row = rows[number]
        if len(row["observation_tokens"]) > max_length:
            raise ValueError(f"a row of {len(row['observation_tokens'])} tokens would be cut at {max_length}")
        return row


if __name__ == "__main__":
    replay = Replay(sys.argv[1])
    replay.write_prompts(sys.argv[2])
    print(f"{len(replay.rows)} prompts, {replay.n_samples} samples per prompt")
