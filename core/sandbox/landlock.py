"""Landlock and seccomp: rules of the kernel on files, ports and signals. The layer of level ``restricted``.

It needs no right and no namespace, so it works where namespaces are blocked. This file is also the program that puts
itself under the rules: ``landlock.py RULES COMMAND...``, with ``RULES`` as JSON. As such it imports nothing but the
standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import stat
import struct
import sys
from typing import Any

ABI_FLOOR = 6
"""The first version of Landlock that has rules on signals (Linux 6.12)."""

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH, _PORT = 1, 2
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_ALL = (1 << 16) - 1
_SOCKETS_AND_DEVICES = 1 << 6 | 1 << 11
_ON_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPES = 1 | 2  # abstract Unix sockets, signals
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def abi() -> int:
    """The kernel's version of Landlock; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    version = ctypes.CDLL(None, use_errno=True).syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION_FLAG)
    return max(0, int(version))


def restrict(rules: dict[str, Any]) -> None:
    """Put this process, and all that it starts, under ``{"read": [path], "write": [path], "port", "filter"}``.

    ``port``: that it may connect to by TCP, or None. ``filter``: of system calls, as hex.

    Raises:
        OSError: the kernel refused a rule.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(what: str, *args: Any) -> int:
        result = libc.syscall(*args) if isinstance(args[0], int) else args[0](*args[1:])
        if result < 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
        return int(result)

    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for capability in range(64):
        libc.prctl(_PR_CAPBSET_DROP, capability)  # fails without rights, when there is nothing to drop
    call("no new rights", libc.prctl, _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    attributes = struct.pack("QQQ", _ALL, _BIND_TCP | _CONNECT_TCP, _SCOPES)
    ruleset = call("ruleset", _CREATE, attributes, ctypes.c_size_t(len(attributes)), 0)
    reading, writing = _EXECUTE | _READ | _LIST, _ALL & ~_SOCKETS_AND_DEVICES
    allowed = [(path, reading) for path in rules["read"]] + [(path, writing) for path in rules["write"]]
    allowed += [(path, _READ | _WRITE | _TRUNCATE | _IOCTL) for path in _DEVICES]
    for path, wanted in allowed:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        access = wanted if stat.S_ISDIR(os.fstat(fd).st_mode) else wanted & _ON_FILES
        call(path, _ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, fd), 0)
        os.close(fd)
    if rules["port"] is not None:
        call("port", _ADD, ruleset, _PORT, struct.pack("QQ", _CONNECT_TCP, rules["port"]), 0)
    call("landlock", _RESTRICT, ruleset, 0)
    os.close(ruleset)
    program = bytes.fromhex(rules["filter"])
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    call("seccomp", libc.prctl, _PR_SET_SECCOMP, 2, ctypes.c_char_p(header), 0, 0)


if __name__ == "__main__":
    try:
        restrict(json.loads(sys.argv[1]))
    except OSError as error:
        sys.exit(f"landlock: {error}")
    os.execvp(sys.argv[2], sys.argv[2:])
