"""A sandbox: a private folder with workspace and home, in which programs run at a level of isolation."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from core.errors import InvalidInput
from core.sandbox import readback
from core.sandbox.base import Job, Layer, Limits, interpreter
from core.sandbox.cgroup import Cgroup
from core.sandbox.isolation import Isolation
from core.sandbox.relay import Relay

OUTPUT_BYTES = 4 << 20
POLL_S = 0.25
PREFIX = "claw-box-"
SWEEP_S = 60.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

End = Literal["exited", "timed_out", "out_of_memory", "disk_full", "stopped"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended.

    Attributes:
        end: ``exited`` (also by a signal), or the limit that ended it, or ``stopped`` by the caller.
        returncode: its exit code; 128 + n or −n for signal n.
        stdout, stderr: at most ``OUTPUT_BYTES`` of each.
        wall_s: duration in seconds, start of the sandbox included.
        cpu_s: processor time of all processes together, seconds; None without a cgroup.
        memory_bytes: peak of all processes together; None without a cgroup.
    """

    end: End
    returncode: int
    stdout: bytes
    stderr: bytes
    wall_s: float
    cpu_s: float | None = None
    memory_bytes: int | None = None


class Sandbox:
    """A sandbox on one layer. Use it in ``with``: at the end its folder is removed.

    Args:
        layer: how programs are isolated.
        isolation: what the probe showed for this layer.
        gateway: host and port that programs may reach; None: nothing.
        readable: files and folders that programs may read besides the system's.
        limits: of every program.

    Attributes:
        workspace, home: folders of the programs; the same paths inside and outside.
        gateway: host and port under which programs inside reach the gateway, or None.
        isolation: what is in force.
    """

    def __init__(
        self,
        layer: Layer,
        isolation: Isolation,
        *,
        gateway: tuple[str, int] | None = None,
        readable: Sequence[Path] = (),
        limits: Limits | None = None,
    ) -> None:
        self.isolation = isolation
        self.gateway = gateway if gateway is None or not layer.relays else ("127.0.0.1", gateway[1])
        self._layer = layer
        # The forwarder to the gateway is a program of this Python.
        own = interpreter()[1] if layer.relays and gateway is not None else []
        self._readable = [path for path in dict.fromkeys((*readable, *own)) if path.exists()]
        self._limits = limits or Limits()
        self._uid = throwaway_uid() if layer.drops_root and os.geteuid() == 0 else None
        # A path without links: programs inside see the same one.
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        # Held while this process lives, so that ``sweep_folders`` knows what a killed one left.
        self._held = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._held, fcntl.LOCK_EX)
        self.workspace, self.home = self._folder / "workspace", self._folder / "home"
        self._relay: Relay | None = None
        try:
            for path in (self.workspace, self.home, self.home / "tmp"):
                path.mkdir()
                self._own(path)
            if layer.relays and gateway is not None:
                self._relay = Relay(str(self._socket), gateway)
                self._socket.chmod(0o666)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _socket(self) -> Path:
        return self._folder / "gateway.sock"

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write files to the workspace. Programs inside must not run meanwhile.

        Raises:
            InvalidInput: a path is outside the workspace.
        """
        self._write(self.workspace, files)

    def put_home(self, files: Mapping[str, bytes]) -> None:
        """Write files to the home, such as an agent's configuration. As ``put`` otherwise."""
        self._write(self.home, files)

    def _write(self, root: Path, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            path = (root / name).resolve()
            if not path.is_relative_to(root) or path == root:
                raise InvalidInput(f"{name} is outside the {root.name}", field="files")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self._own_all(root)

    def copy_in(self, folder: Path, at: str = "") -> readback.Listing:
        """Copy a folder to the workspace, without links; what is refused is in the listing.

        Args:
            folder: the folder to copy.
            at: name of the folder of the workspace that gets the files, in place of what has this name.
        """
        target = self.workspace / at
        if at:
            if "/" in at or at in {".", ".."}:
                raise InvalidInput(f"{at!r} is no name in the workspace", field="at")
            if target.is_dir() and not target.is_symlink():
                remove(target)
            else:
                target.unlink(missing_ok=True)
            target.mkdir()
        listing = readback.copy(folder, target)
        self._own_all(self.workspace)
        return listing

    def lend(self, folder: Path) -> Path:
        """Copy a folder to where programs can read and not change it at level ``strict``; the path of the copy.

        The copy is readable for the user of the programs, whatever the permissions of the original. Links are left out.
        """
        target = self._folder / "lent" / str(len(self._readable))
        target.mkdir(parents=True)
        target.chmod(0o755)
        readback.copy(folder, target)
        self._readable.append(target)
        return target

    def listing(self) -> readback.Listing:
        """What is in the workspace; see ``core.sandbox.readback``."""
        return readback.listing(self.workspace)

    def read_bytes(self, path: str) -> bytes:
        """Content of one file of the workspace.

        Raises:
            OSError: there is no such file, or its path has a link.
        """
        return readback.read_bytes(self.workspace, path)

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        limits: Limits | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Ended:
        """Run a program in the workspace and wait for its end; every process that it started ends with it.

        The processes are killed when the calling thread ends. At levels below ``strict``, processes that leave the
        group of the program end only where a cgroup holds them; ``Isolation`` says which it is.

        Args:
            command: program and arguments.
            env: added to PATH, HOME, TMPDIR and LANG; nothing else is inherited.
            stdin: its input.
            limits: instead of those of the sandbox.
            should_stop: asked several times a second; True ends the program.

        Raises:
            InvalidInput: the command is empty.
            OSError: the sandbox could not be started.
        """
        if not command:
            raise InvalidInput("no command", field="command", hint="program and arguments")
        limits = limits or self._limits
        begin = time.monotonic()
        group = Cgroup(limits) if "cgroup" in (self.isolation.memory, self.isolation.pids) else None
        inside = {"PATH": PATH, "HOME": str(self.home), "TMPDIR": str(self.home / "tmp"), "LANG": "C.UTF-8"}
        if self.isolation.files == "own":
            inside["TMPDIR"] = "/tmp"
        job = Job(
            command=command,
            folder=self._folder,
            workspace=self.workspace,
            home=self.home,
            readable=self._readable,
            env={**inside, **(env or {})},
            gateway=self.gateway,
            socket=self._socket if self._relay is not None else None,
            limits=limits,
            uid=self._uid,
            capped=group is not None,
        )
        try:
            with (
                tempfile.TemporaryFile() as given,
                tempfile.TemporaryFile() as out,
                tempfile.TemporaryFile() as err,
            ):
                given.write(stdin)
                given.seek(0)
                end, code = self._run(job, group, (given, out, err), begin, should_stop)
                used = (None, None) if group is None else (group.cpu_s(), group.peak_memory())
                return Ended(end, code, _head(out), _head(err), time.monotonic() - begin, *used)
        finally:
            if group is not None:
                group.remove()

    def _run(
        self,
        job: Job,
        group: Cgroup | None,
        pipes: tuple[IO[bytes], IO[bytes], IO[bytes]],
        begin: float,
        should_stop: Callable[[], bool],
    ) -> tuple[End, int]:
        launch = self._layer.wrap(job)
        argv = list(launch.argv)
        try:
            process = subprocess.Popen(
                argv if group is None else group.joined(argv),
                stdin=pipes[0],
                stdout=pipes[1],
                stderr=pipes[2],
                cwd=self.workspace,
                env=dict(job.env),
                pass_fds=tuple(launch.fds),
                start_new_session=True,
            )
        finally:
            for fd in launch.fds:
                os.close(fd)
        end: End = "exited"
        try:
            while not _wait(process, min(POLL_S, begin + job.limits.time_s - time.monotonic())):
                if time.monotonic() - begin >= job.limits.time_s:
                    end = "timed_out"
                elif should_stop():
                    end = "stopped"
                else:
                    n_bytes, n_files = readback.usage((self.workspace, self.home), enough=job.limits.files)
                    if n_bytes <= job.limits.disk_bytes and n_files <= job.limits.files:
                        continue
                    end = "disk_full"
                break
        finally:
            # Also after a normal end: what stayed in its group must not go on.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            if group is not None:
                group.kill()
            process.wait()
        if end == "exited" and process.returncode != 0 and group is not None and group.n_killed_for_memory():
            end = "out_of_memory"
        return end, process.returncode

    def close(self) -> None:
        """Remove the sandbox and all its files."""
        if self._relay is not None:
            self._relay.close()
        remove(self._folder)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _own(self, path: Path) -> None:
        if self._uid is not None:
            os.chown(path, self._uid, self._uid, follow_symlinks=False)

    def _own_all(self, root: Path) -> None:
        if self._uid is not None:
            for folder, folders, files in os.walk(root):
                for name in (*folders, *files):
                    self._own(Path(folder, name))


def sweep_folders(*, older_than_s: float = SWEEP_S) -> int:
    """Remove the sandboxes of processes that were killed before they could do it; returns their number."""
    n_removed = 0
    for folder in Path(tempfile.gettempdir()).resolve().glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            # One that was just made may not be held yet.
            if folder.stat().st_uid != os.geteuid() or time.time() - folder.stat().st_mtime < older_than_s:
                continue
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)
                n_removed += 1
            finally:
                os.close(fd)
    return n_removed


def throwaway_uid() -> int:
    """A random user that nothing belongs to, among those that exist in this process's user namespace."""
    n_users = 1 << 16
    with contextlib.suppress(OSError, ValueError, IndexError):
        n_users = max(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    low, high = (1 << 30, 1 << 31) if n_users > 1 << 31 else (20_000, 60_000)
    return low + secrets.randbelow(high - low)


def remove(folder: Path) -> None:
    """Remove a folder, also one whose inner folders can't be entered; links are not followed."""

    def open_up(_function: object, path: str, _error: object) -> None:
        parent = Path(path).parent
        for one in (parent, Path(path)):
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(one.lstat().st_mode):
                    one.chmod(0o700)
        with contextlib.suppress(OSError):
            if Path(path).is_dir() and not Path(path).is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                Path(path).unlink()

    shutil.rmtree(folder, onerror=open_up)
    if folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def with_cgroup(isolation: Isolation) -> Isolation:
    """The promises of a layer whose programs run in a cgroup."""
    return replace(isolation, memory="cgroup", pids="cgroup", processors="cgroup")


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether the process ended within the time. ``Popen.wait`` would notice it up to 50 ms late."""
    if process.poll() is not None:
        return True
    try:
        fd = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, timeout_s))
        return process.poll() is not None
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(max(0, int(timeout_s * 1000)))
    finally:
        os.close(fd)
    return process.poll() is not None


def _head(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(OUTPUT_BYTES)
