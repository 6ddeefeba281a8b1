"""A cgroup for one sandbox: limits on all its processes together, and a way to end them all."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from pathlib import Path

from core.sandbox.base import Limits

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
REMOVE_S = 2.0
# A shell moves itself into the groups named before --, then becomes the command: nothing runs outside them.
JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'


class Cgroup:
    """One cgroup of version 2, or one of version 1 in the hierarchies memory, pids, cpuacct and, for a limit, cpu.

    Raises:
        OSError: no cgroup can be written here.
    """

    def __init__(self, limits: Limits) -> None:
        self.folders: list[Path] = []
        name = f"claw-{os.getpid()}-{secrets.token_hex(8)}"
        try:
            parents = _parents_v1(processors=limits.processors is not None) or _parents_v2()
            for parent in (*parents, *_accounting_v1()):
                folder = parent / name
                folder.mkdir()
                self.folders.append(folder)
            _limit(self.folders[: len(parents)], limits)
        except OSError:
            self.remove()
            raise

    def joined(self, argv: list[str]) -> list[str]:
        """``argv``, started inside this cgroup."""
        return ["/bin/sh", "-c", JOIN, "sh", *map(str, self.folders), "--", *argv]

    def n_killed_for_memory(self) -> int:
        """How many processes the kernel killed because the limit of memory was reached."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    for line in (folder / name).read_text().splitlines():
                        key, _, count = line.partition(" ")
                        if key == "oom_kill":
                            return int(count)
        return 0

    def peak_memory(self) -> int | None:
        """Largest memory of all processes together so far, bytes; None if the kernel does not count it."""
        for folder in self.folders:
            for name in ("memory.peak", "memory.max_usage_in_bytes"):
                with contextlib.suppress(OSError, ValueError):
                    return int((folder / name).read_text())
        return None

    def cpu_s(self) -> float | None:
        """Processor time of all processes together so far, seconds; None if the kernel does not count it."""
        folder = self.folders[-1]
        with contextlib.suppress(OSError, ValueError):
            return int((folder / "cpuacct.usage").read_text()) / 1e9
        with contextlib.suppress(OSError, ValueError):
            words = (folder / "cpu.stat").read_text().split()
            if "usage_usec" in words:
                return int(words[words.index("usage_usec") + 1]) / 1e6
        return None

    def kill(self) -> None:
        """End every process in it."""
        for folder in self.folders[:1]:
            _kill(folder)

    def remove(self) -> None:
        """End every process in it and remove it."""
        for folder in self.folders:
            _remove(folder)


def sweep() -> None:
    """End and remove the groups of processes that were killed before they could do it."""
    with contextlib.suppress(OSError):
        for parent in [*_parents_v1(processors=True), *_accounting_v1()] or _parents_v2():
            for folder in parent.glob("claw-*-*"):
                owner = folder.name.split("-")[1]
                if owner.isdigit() and not Path("/proc", owner).exists():
                    _remove(folder)


def _remove(folder: Path) -> None:
    end = time.monotonic() + REMOVE_S
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            _kill(folder)
            if time.monotonic() > end:
                return
            time.sleep(0.005)
        else:
            return


def _kill(folder: Path) -> None:
    with contextlib.suppress(OSError):
        pids = [int(line) for line in (folder / "cgroup.procs").read_text().split()]
        for pid in pids:
            if pid > 0:  # processes of another namespace are listed as 0
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _own() -> dict[str, str]:
    """Controllers of version 1, or "" for version 2 -> path of this process's cgroup."""
    paths = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for one in controllers.split(","):
            paths[one] = path.lstrip("/")
    return paths


def _parents_v1(*, processors: bool) -> list[Path]:
    """This process's cgroups of memory, pids and, with ``processors``, cpu; empty without version 1.

    A group in the hierarchy cpu has a share of its own, whatever the priority of its processes: so only for a limit.
    """
    own = _own()
    names = ("memory", "pids", "cpu") if processors else ("memory", "pids")
    return [ROOT / name / own[name] for name in names] if set(names) <= own.keys() else []


def _accounting_v1() -> list[Path]:
    """This process's cgroup that counts processor time, if it can be written and is not the one with shares of it."""
    own = _own()
    if not {"memory", "cpuacct"} <= own.keys() or (ROOT / "cpuacct").resolve() == (ROOT / "cpu").resolve():
        return []
    folder = ROOT / "cpuacct" / own["cpuacct"]
    return [folder] if os.access(folder, os.W_OK) else []


def _parents_v2() -> list[Path]:
    """The nearest cgroup of version 2 whose children have limits and can be written."""
    own = ROOT / _own().get("", "")
    for folder in (own, *own.parents):
        with contextlib.suppress(OSError):
            enabled = set((folder / "cgroup.subtree_control").read_text().split())
            if {"memory", "pids"} <= enabled and os.access(folder, os.W_OK):
                return [folder]
        if folder == ROOT:
            break
    raise OSError("no cgroup with limits of memory and pids can be written")


def _limit(folders: list[Path], limits: Limits) -> None:
    quota = None if limits.processors is None else int(limits.processors * PERIOD_US)
    if len(folders) == 1:
        (folder,) = folders
        (folder / "memory.max").write_text(str(limits.memory_bytes))
        with contextlib.suppress(OSError):  # not there without swap
            (folder / "memory.swap.max").write_text("0")
        (folder / "pids.max").write_text(str(limits.pids))
        if quota is not None:
            (folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        return
    memory, pids, *cpu = folders
    (memory / "memory.limit_in_bytes").write_text(str(limits.memory_bytes))
    with contextlib.suppress(OSError):
        (memory / "memory.memsw.limit_in_bytes").write_text(str(limits.memory_bytes))
    (pids / "pids.max").write_text(str(limits.pids))
    for folder in cpu:
        (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (folder / "cpu.cfs_quota_us").write_text(str(quota))
