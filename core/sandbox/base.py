"""The interface of layers: a job goes in, a command line comes out."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from core.sandbox.isolation import Isolation

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one program and all processes that it starts.

    Attributes:
        time_s: wall time in seconds; then everything is killed.
        memory_bytes: of all processes together where a cgroup holds it, else of each process.
        processors: share of processors; needs a cgroup. None: no limit.
        pids: number of processes and threads.
        file_bytes: size of one file; this also bounds stdout and stderr.
        disk_bytes: of workspace and home together, checked while the program runs.
        files: number of files in workspace and home together, checked while the program runs.
    """

    time_s: float = 120.0
    memory_bytes: int = 4096 * MIB
    processors: float | None = None
    pids: int = 512
    file_bytes: int = 512 * MIB
    disk_bytes: int = 2048 * MIB
    files: int = 100_000


@dataclass(frozen=True, slots=True)
class Job:
    """One program to run.

    Attributes:
        command: program and arguments.
        folder: private folder of the sandbox on the host, which programs inside can't list.
        workspace, home: folders that the program may write; the same paths inside and outside.
        readable: files and folders that the program may read as well.
        env: its complete environment.
        gateway: host and port that the program may reach; None: nothing.
        socket: Unix socket in ``folder`` behind which the gateway is reached; None without a gateway.
        limits: see ``Limits``.
        uid: user that the program becomes, when this process is root; else None.
        capped: a cgroup bounds memory and processes.
    """

    command: Sequence[str]
    folder: Path
    workspace: Path
    home: Path
    readable: Sequence[Path]
    env: Mapping[str, str]
    gateway: tuple[str, int] | None
    socket: Path | None
    limits: Limits
    uid: int | None
    capped: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line of the host, and the descriptors that it inherits; ``close`` them after the start."""

    argv: Sequence[str]
    fds: Sequence[int] = field(default_factory=tuple)


class Layer(Protocol):
    """One way to isolate a program."""

    promises: Isolation
    """What it promises without a cgroup. The probe checks it."""
    missing: str | None
    """Why it can't be used here, as far as can be seen without running it; None if nothing is missing."""
    drops_root: bool
    """Whether the program runs as another user when this process is root."""
    relays: bool
    """Whether the gateway is reached through ``Job.socket``; else directly."""

    def wrap(self, job: Job) -> Launch:
        """The command line that runs the job."""


# dash and busybox name the limit of processes -p, other shells -u. A limit that the shell refuses because a lower one
# is in force is kept at the lower one.
LIMITED = """ulimit -c 0
ulimit -f {blocks} 2>/dev/null
ulimit -n {open_files} 2>/dev/null
{data}{pids}exec "$@"
"""
OPEN_FILES = 4096


def limited(job: Job, command: Sequence[str], *, pids: bool) -> list[str]:
    """``command`` behind a shell that sets the job's limits of each process; ``pids``: of their number too."""
    n = job.limits.pids
    script = LIMITED.format(
        blocks=max(1, job.limits.file_bytes // 512),
        open_files=OPEN_FILES,
        data="" if job.capped else f"ulimit -d {job.limits.memory_bytes // 1024} 2>/dev/null\n",
        pids=f"ulimit -u {n} 2>/dev/null || ulimit -p {n} 2>/dev/null\n" if pids else "",
    )
    return ["/bin/sh", "-c", script, "sh", *command]


def interpreter() -> tuple[str, list[Path]]:
    """This Python, and the folders that it needs to start: its environment and its base installation."""
    folders = [Path(sys.prefix), Path(sys.base_prefix)]
    return sys.executable, list(dict.fromkeys(one for one in folders if not one.is_relative_to("/usr")))
