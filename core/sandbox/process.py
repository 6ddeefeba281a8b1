"""A process group with limits and a fresh home. The layer of level ``process``: it isolates nothing."""

from __future__ import annotations

import shutil

from core.sandbox.base import Job, Launch, limited
from core.sandbox.isolation import Isolation


class ProcessGroup:
    """Runs where nothing else does."""

    drops_root = False
    relays = False
    missing: str | None = None
    promises = Isolation(
        level="process",
        layer="process group",
        files="open",
        network="open",
        processes="shared",
        memory="rlimit",
        pids=None,
        processors=None,
        dies_with_parent="first",
    )

    def wrap(self, job: Job) -> Launch:
        """The limits, and where util-linux is found, an end with the caller."""
        setpriv = shutil.which("setpriv")
        front = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
        return Launch([*front, *limited(job, job.command, pids=False)])
