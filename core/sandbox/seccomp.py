"""Filters of system calls (classic BPF for seccomp): what a sandboxed program never needs, and the kernel's riskiest.

The reference of the format is Documentation/userspace-api/seccomp_filter.rst; numbers are those of the kernel's tables.
"""

from __future__ import annotations

import errno
import platform
import struct

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARG0, _ARG1, _ARG2 = (
    0,
    4,
    16,
    24,
    32,
)  # offsets in struct seccomp_data; the low halves, on little-endian machines

# Flags of clone that make a namespace: cgroup, mount, UTS, IPC, user, PID, net.
_NAMESPACES = 0x02000000 | 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_AF_INET, _AF_INET6, _SOCK_STREAM, _SOCK_TYPES, _IPPROTO_TCP = 2, 10, 1, 0xF, 6

# Mounts by the newer interface, io_uring and clone3 have the same numbers everywhere.
_CLONE3 = 435
_IO_URING = (425, 426, 427)
_MOUNTS = (428, 429, 430, 431, 432, 433, 442)
_MACHINES: dict[str, tuple[int, int, int, int, tuple[int, ...]]] = {
    # machine: (audit arch, clone, socket, first number of a foreign ABI or 0, refused calls: unshare, setns, mount,
    # umount2, pivot_root, bpf, perf_event_open, userfaultfd, add_key, request_key, keyctl, three of modules,
    # kexec_load, open_by_handle_at)
    "x86_64": (
        0xC000003E,
        56,
        41,
        0x40000000,
        (272, 308, 165, 166, 155, 321, 298, 323, 248, 249, 250, 175, 313, 176, 246, 304),
    ),
    "aarch64": (
        0xC00000B7,
        220,
        198,
        0,
        (97, 268, 40, 39, 41, 280, 241, 282, 217, 218, 219, 105, 273, 106, 104, 265),
    ),
}


def supported() -> bool:
    """Whether there is a filter for this machine."""
    return platform.machine() in _MACHINES


def build(*, tcp_only: bool = False) -> bytes:
    """The filter as an array of ``struct sock_filter``.

    It refuses new namespaces, mounts, io_uring, eBPF, kernel keys and modules. ``tcp_only``: also every socket that is
    not TCP, Unix sockets included; pairs of connected sockets stay.
    """
    arch, clone, socket, foreign, refused = _MACHINES[platform.machine()]
    eperm, enosys = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    program: list[tuple[int, int, int, int]] = [(_LD, 0, 0, _ARCH), (_JEQ, 1, 0, arch), (_RET, 0, 0, eperm)]
    program.append((_LD, 0, 0, _NR))
    if foreign:
        program += [(_JGE, 0, 1, foreign), (_RET, 0, 0, eperm)]
    for number in (*refused, *_MOUNTS):
        program += [(_JEQ, 0, 1, number), (_RET, 0, 0, eperm)]
    # Flags of clone3 are behind a pointer. Without it, libraries use clone.
    for number in (_CLONE3, *_IO_URING):
        program += [(_JEQ, 0, 1, number), (_RET, 0, 0, enosys)]
    program += [(_JEQ, 0, 4, clone), (_LD, 0, 0, _ARG0), (_JSET, 0, 1, _NAMESPACES), (_RET, 0, 0, eperm)]
    program.append((_RET, 0, 0, _ALLOW))
    if tcp_only:
        program += [(_JEQ, 1, 0, socket), (_RET, 0, 0, _ALLOW)]
        program += [(_LD, 0, 0, _ARG0), (_JEQ, 2, 0, _AF_INET), (_JEQ, 1, 0, _AF_INET6), (_RET, 0, 0, eperm)]
        # The type has flags in its higher bits: every type with another bit than SOCK_STREAM's is refused.
        program += [(_LD, 0, 0, _ARG1), (_JSET, 0, 1, _SOCK_TYPES & ~_SOCK_STREAM), (_RET, 0, 0, eperm)]
        # Landlock's rules on ports don't hold for MPTCP and SMC, which are other protocols of the same type.
        program += [(_LD, 0, 0, _ARG2), (_JEQ, 2, 0, 0), (_JEQ, 1, 0, _IPPROTO_TCP), (_RET, 0, 0, eperm)]
    program.append((_RET, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *one) for one in program)
