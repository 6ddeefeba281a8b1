"""The isolation of a program: its level, what each part of it promises, and why it is not higher."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from core.errors import InvalidInput

Level = Literal["process", "restricted", "strict"]
LEVELS: tuple[Level, ...] = ("process", "restricted", "strict")
"""From weak to strong. docs/sandboxes.md lists what each promises."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What is in force for a program, as shown by a probe on this machine. Stored with each attempt.

    Attributes:
        level: ``strict`` (namespaces), ``restricted`` (rules of the kernel on files, ports and signals) or
            ``process`` (a process group with limits).
        layer: the program or kernel interface behind it, with its version.
        files: ``own`` (other files don't exist inside), ``rules`` (they can't be opened) or ``open``.
        network: ``gateway-only``, ``gateway-port`` (TCP to the gateway's port, on any host) or ``open``.
        processes: ``own`` (others don't exist inside), ``no-signals`` (they can't be signalled, nor read in /proc) or
            ``shared``.
        memory: ``cgroup`` (all processes together), ``rlimit`` (each process) or None (no limit).
        pids: ``cgroup``, ``rlimit`` or None.
        processors: ``cgroup`` or None.
        dies_with_parent: ``all`` processes or only the ``first`` one end when the caller is killed.
        why: why a higher level or a stronger limit is not in force.
    """

    level: Level
    layer: str
    files: Literal["own", "rules", "open"]
    network: Literal["gateway-only", "gateway-port", "open"]
    processes: Literal["own", "no-signals", "shared"]
    memory: Literal["cgroup", "rlimit"] | None
    pids: Literal["cgroup", "rlimit"] | None
    processors: Literal["cgroup"] | None
    dies_with_parent: Literal["all", "first"]
    why: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {**asdict(self), "why": list(self.why)}


def at_least(level: Level, wanted: Level) -> bool:
    """Whether ``level`` promises no less than ``wanted``."""
    return LEVELS.index(level) >= LEVELS.index(wanted)


def parse_level(value: object, field: str = "isolation") -> Level:
    """``value`` as a level.

    Raises:
        InvalidInput: there is no such level.
    """
    for level in LEVELS:
        if value == level:
            return level
    raise InvalidInput(f"no isolation level {value!r}", field=field, hint=f"one of {', '.join(LEVELS)}")
