"""Sandboxes for programs that are not trusted: agents, and the checks of tasks.

with choose("strict").sandbox(gateway=("127.0.0.1", 8100)) as sandbox:
    ended = sandbox.run(["sh", "-c", "echo hello > note"])
    sandbox.read_bytes("note"), sandbox.isolation.as_dict()
"""

from __future__ import annotations

from core.sandbox.base import Limits, interpreter
from core.sandbox.box import Ended, Sandbox
from core.sandbox.isolation import LEVELS, Isolation, Level, parse_level
from core.sandbox.probe import IsolationMissing, Probed, choose, probed

__all__ = [
    "LEVELS",
    "Ended",
    "Isolation",
    "IsolationMissing",
    "Level",
    "Limits",
    "Probed",
    "Sandbox",
    "choose",
    "interpreter",
    "parse_level",
    "probed",
]
