"""Finds out which layers work on this machine, by running a program in each that tries to break its promises."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core.errors import StudioError
from core.sandbox.base import MIB, Layer, Limits, interpreter
from core.sandbox.box import Sandbox, with_cgroup
from core.sandbox.bwrap import Bubblewrap, bundled
from core.sandbox.cgroup import Cgroup, sweep
from core.sandbox.isolation import LEVELS, Isolation, Level, at_least
from core.sandbox.process import ProcessGroup
from core.sandbox.rules import KernelRules

PROBE_S = 60.0
PROBE_BYTES = 192 * MIB

# Prints what it could do, as JSON. Its input names a file, a process and ports of the host.
PROGRAM = """
import json, os, socket, sys
host = json.loads(sys.argv[1])
can = {}
def attempt(name, action):
    try:
        can[name] = bool(action())
    except (OSError, ValueError):
        can[name] = False
def connect():
    socket.create_connection(("127.0.0.1", host["tcp"]), timeout=5).close()
    return True
def send():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        return s.sendto(b"x", ("127.0.0.1", host["udp"]))
def write(path):
    with open(path, "r+" if path == host["file"] else "a") as file:
        return file.write("x")
def kill():
    os.kill(host["pid"], 0)
    return True
attempt("read", lambda: open(host["file"]).read())
attempt("write", lambda: write(host["file"]))
attempt("tcp", connect)
attempt("udp", send)
attempt("signal", kill)
attempt("proc", lambda: open("/proc/%d/cmdline" % host["pid"]).read())
attempt("workspace", lambda: write("probe"))
attempt("home", lambda: write(os.path.expanduser("~/probe")))
can["root"] = os.getuid() == 0
print(json.dumps(can))
"""
TOO_MUCH = "b = bytearray({0}); b[::4096] = b'x' * len(b[::4096])"


class IsolationMissing(StudioError):
    """The demanded level of isolation does not exist on this machine."""

    type = "isolation_missing"
    http_status = 422


@dataclass(frozen=True, slots=True)
class Probed:
    """One layer that works here, and what was shown of it."""

    layer: Layer
    isolation: Isolation

    def sandbox(
        self,
        *,
        gateway: tuple[str, int] | None = None,
        readable: Sequence[Path] = (),
        limits: Limits | None = None,
    ) -> Sandbox:
        """A new sandbox on this layer."""
        return Sandbox(self.layer, self.isolation, gateway=gateway, readable=readable, limits=limits)


@functools.cache
def probed() -> tuple[Probed, ...]:
    """The layers that work here, best first. Each was run once; the result is kept for the life of this process."""
    why: list[str] = []
    working: list[Probed] = []
    capped, no_cgroup = _probe_cgroup()
    layers: list[Layer] = [
        Bubblewrap("system", shutil.which("bwrap")),
        Bubblewrap("bundled", bundled()),
        KernelRules(),
        ProcessGroup(),
    ]
    for layer in layers:
        level = layer.promises.level
        if any(one.isolation.level == level for one in working):
            continue
        isolation = with_cgroup(layer.promises) if capped else layer.promises
        reason = layer.missing or _broken_promise(layer, isolation)
        if reason is not None:
            why.append(f"{level}, {layer.promises.layer}: {reason}")
        else:
            reasons = [*why, *([f"limits of all processes together: {no_cgroup}"] if no_cgroup else [])]
            working.append(Probed(layer, replace(isolation, why=tuple(reasons))))
    return tuple(working)


def choose(wanted: Level = "process") -> Probed:
    """The best layer of this machine.

    Raises:
        IsolationMissing: it is below the level ``wanted``.
    """
    layers = probed()
    best = max(layers, key=lambda one: LEVELS.index(one.isolation.level), default=None)
    if best is not None and at_least(best.isolation.level, wanted):
        return best
    in_force = "none" if best is None else best.isolation.level
    why = "; ".join(best.isolation.why if best is not None else ()) or "no layer works"
    raise IsolationMissing(
        f"isolation {wanted} is demanded, but this machine has {in_force}: {why}",
        field="isolation",
        hint="install bubblewrap, or demand a lower level; docs/sandboxes.md lists what each promises",
    )


def _probe_cgroup() -> tuple[bool, str | None]:
    """Whether a cgroup can be made and its limit of memory holds; else the reason."""
    sweep()
    try:
        Cgroup(Limits()).remove()
    except OSError as error:
        return False, f"no cgroup can be made ({error})"
    python, readable = interpreter()
    isolation = with_cgroup(ProcessGroup.promises)
    limits = Limits(time_s=PROBE_S, memory_bytes=PROBE_BYTES // 2, pids=64)
    with Sandbox(ProcessGroup(), isolation, readable=readable, limits=limits) as sandbox:
        ended = sandbox.run([python, "-I", "-S", "-c", TOO_MUCH.format(PROBE_BYTES)])
    if ended.end == "out_of_memory" or ended.returncode != 0:
        return True, None
    return False, "the limit of memory of a cgroup does not hold"


def _broken_promise(layer: Layer, isolation: Isolation) -> str | None:
    """Run the probe in a layer; the first promise that does not hold, or None."""
    python, readable = interpreter()
    with (
        tempfile.NamedTemporaryFile("w", prefix="claw-probe-", suffix=".txt") as file,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        file.write("host")
        file.flush()
        Path(file.name).chmod(0o666)
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        host = {
            "file": file.name,
            "pid": os.getpid(),
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
        }
        try:
            with Sandbox(layer, isolation, readable=readable, limits=Limits(time_s=PROBE_S)) as sandbox:
                ended = sandbox.run([python, "-I", "-S", "-c", PROGRAM, json.dumps(host)])
            can: dict[str, Any] = json.loads(ended.stdout)
        except OSError as error:
            return str(error)
        except ValueError:
            text = ended.stderr.decode(errors="replace").strip().splitlines()
            return f"it does not start here ({(text or [f'{ended.end}, code {ended.returncode}'])[-1][:200]})"
        try:
            can["udp"] = bool(udp.recv(1))
        except BlockingIOError:
            can["udp"] = False
    return _contradiction(can, isolation, layer)


def _contradiction(can: dict[str, Any], isolation: Isolation, layer: Layer) -> str | None:
    for place in ("workspace", "home"):
        if not can[place]:
            return f"the program can't write its {place}"
    if isolation.files != "open" and (can["read"] or can["write"]):
        return "the program can open files of the host"
    if isolation.network != "open" and (can["tcp"] or can["udp"]):
        return "the program can reach other ports"
    if isolation.processes != "shared" and (can["signal"] or can["proc"]):
        return "the program can see or signal processes of the host"
    if layer.drops_root and os.geteuid() == 0 and can["root"]:
        return "the program is still root"
    return None
