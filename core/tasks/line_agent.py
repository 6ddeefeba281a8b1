"""An agent whose model answers with one action a line: ``read F``, ``write F words``, ``move F G`` or ``done``.

The language is small enough for a model of a third of a million parameters. The task is the user's message, each action
an assistant message, and each result the next user message, so a trajectory is a normal chat.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.client import StudioClient

MAX_TURNS = 6
MAX_TOKENS = 12
"""Token limit of one action; the longest action of the shipped tasks has eight tokens."""
NAME = re.compile(r"[a-z]{1,16}")
MISSING = "none"
DONE = "done"


class LineFiles:
    """The files of one workspace folder, changed by actions.

    A file name is 1 to 16 lower-case letters, so no action leaves the folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def call(self, action: str) -> str:
        """Carry out an action; returns ``= words`` for a read, ``ok``, ``none`` for a missing file, or ``error``."""
        words = action.split()
        match words:
            case ["read", name] if NAME.fullmatch(name):
                path = self.root / name
                return f"= {path.read_text(encoding='utf-8').strip()}" if path.is_file() else MISSING
            case ["write", name, *content] if content and NAME.fullmatch(name):
                (self.root / name).write_text(" ".join(content) + "\n", encoding="utf-8")
                return "ok"
            case ["move", source, target] if NAME.fullmatch(source) and NAME.fullmatch(target):
                path = self.root / source
                if not path.is_file():
                    return MISSING
                path.replace(self.root / target)
                return "ok"
        return "error"


@dataclass(frozen=True, slots=True)
class LineResult:
    """How one attempt ended: ``outcome`` is ``finished`` (said done), ``max_turns`` or ``interrupted``."""

    outcome: str
    n_turns: int


def run_line_agent(
    client: StudioClient,
    *,
    model: str,
    prompt: str,
    workspace: Path,
    temperature: float,
    seed: int | None = None,
    max_turns: int = MAX_TURNS,
    should_stop: Callable[[], bool] = lambda: False,
) -> LineResult:
    """Let ``model`` act on ``workspace`` until it answers ``done`` or runs out of turns.

    Args:
        client: a connection whose key is the attempt's session key.
        temperature: 1 samples from the model's own distribution, which captured log-probs describe; 0 is greedy.
        seed: turn ``t`` is sampled with ``seed + t``; None leaves it to the engine.

    Raises:
        StudioError: the engine or the studio refused a call, or did not answer.
    """
    files = LineFiles(workspace)
    messages = [{"role": "user", "content": prompt}]
    for turn in range(max_turns):
        if should_stop():
            return LineResult("interrupted", turn)
        body = {"model": model, "messages": messages, "max_tokens": MAX_TOKENS, "temperature": temperature}
        if seed is not None:
            body["seed"] = seed + turn
        action = str(client.call("POST", "/v1/chat/completions", body)["choices"][0]["message"]["content"] or "")
        if action.strip() == DONE:
            return LineResult("finished", turn + 1)
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": files.call(action)}]
    return LineResult("max_turns", max_turns)
