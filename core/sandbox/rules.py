"""The layer ``restricted``: builds the rules that ``landlock.py`` applies to itself and to what it starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from core.sandbox import landlock, seccomp
from core.sandbox.base import Job, Launch, limited
from core.sandbox.bwrap import ETC, SYSTEM
from core.sandbox.isolation import Isolation

ACCOUNTS = ("group", "hosts", "nsswitch.conf", "passwd")


class KernelRules:
    """Landlock with a filter of system calls."""

    drops_root = False
    relays = False

    def __init__(self) -> None:
        version = landlock.abi()
        self.missing: str | None = None
        if version < landlock.ABI_FLOOR:
            self.missing = f"Landlock version {landlock.ABI_FLOOR} (Linux 6.12); the kernel has {version or 'none'}"
        elif not seccomp.supported():
            self.missing = "no filter of system calls for this machine"
        self.promises = Isolation(
            level="restricted",
            layer=f"Landlock {version} and seccomp",
            files="rules",
            network="gateway-port",
            processes="no-signals",
            memory="rlimit",
            pids=None,
            processors=None,
            dies_with_parent="first",
        )

    def wrap(self, job: Job) -> Launch:
        """A Python program that applies the rules, then becomes the command."""
        readable = [Path("/usr"), *map(Path, SYSTEM), *(Path("/etc", name) for name in (*ETC, *ACCOUNTS))]
        rules = {
            "read": [str(path) for path in (*readable, *job.readable)],
            "write": [str(job.workspace), str(job.home)],
            "port": None if job.gateway is None else job.gateway[1],
            "filter": seccomp.build(tcp_only=True).hex(),
        }
        front = [sys.executable, "-I", "-S", landlock.__file__, json.dumps(rules)]
        return Launch(limited(job, [*front, *job.command], pids=False))
