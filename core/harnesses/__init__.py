"""Harnesses: how agents are started once on a task. One file each, registered by name in ``REGISTRY``."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import InvalidInput
from core.harnesses import claude_code, codex, command, demo, mini_swe_agent, openclaw, opencode, qwen_code
from core.harnesses.base import KEY_PLACE, Harness, HarnessMissing, Job, Program, Start

__all__ = [
    "KEY_PLACE",
    "NAMES",
    "REGISTRY",
    "Harness",
    "HarnessMissing",
    "Job",
    "Program",
    "Start",
    "harness_of",
]

REGISTRY: dict[str, Harness] = {
    one.name: one
    for one in (
        demo.HARNESS,
        opencode.HARNESS,
        claude_code.HARNESS,
        codex.HARNESS,
        openclaw.HARNESS,
        mini_swe_agent.HARNESS,
        qwen_code.HARNESS,
    )
}
NAMES = (*REGISTRY, command.NAME)


def harness_of(name: str, command_line: Sequence[str] = ()) -> Harness:
    """The harness of this name; ``command`` takes a command line.

    Raises:
        InvalidInput: there is no such harness, or the command line is missing or not wanted.
    """
    if name == command.NAME:
        return command.harness(command_line)
    if name not in REGISTRY:
        raise InvalidInput(f"there is no harness {name!r}", field="agent", hint=", ".join(NAMES))
    if command_line:
        raise InvalidInput(f"the harness {name} takes no command line", field="command", hint="--agent command")
    return REGISTRY[name]
