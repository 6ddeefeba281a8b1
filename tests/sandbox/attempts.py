"""Programs that try to leave a sandbox, each with the promise that must stop it.

A program gets ``host`` (a JSON object that names targets on the host), and ends with code 42 if it succeeded. All
targets are made for the test: no attempt harms the machine where nothing stops it, and bombs have a bound of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.sandbox import Isolation

HEAD = """
import ctypes, json, os, socket, struct, sys
host = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def escaped(yes=True):
    if yes:
        os._exit(42)
"""


def always(_: Isolation) -> bool:
    """Promised at every level."""
    return True


def files(one: Isolation) -> bool:
    """Files of the host can't be opened."""
    return one.files != "open"


def own_files(one: Isolation) -> bool:
    """Files of the host don't exist."""
    return one.files == "own"


def network(one: Isolation) -> bool:
    """Only the gateway's port can be reached."""
    return one.network != "open"


def own_network(one: Isolation) -> bool:
    """The network is the sandbox's own."""
    return one.network == "gateway-only"


def processes(one: Isolation) -> bool:
    """Processes of the host can't be signalled nor read."""
    return one.processes != "shared"


def own_processes(one: Isolation) -> bool:
    """Processes of the host and their shared memory don't exist."""
    return one.processes == "own"


def own_user(one: Isolation) -> bool:
    """A program of root becomes another user."""
    return one.level == "strict"


def rights(one: Isolation) -> bool:
    """The program has no rights over the machine."""
    return one.level != "process"


@dataclass(frozen=True)
class Attempt:
    """``promise`` says at which isolation the program must fail; ``program`` is Python."""

    name: str
    promise: object
    program: str


ATTEMPTS = [
    # files
    Attempt("read a file", files, "escaped(open(host['file']).read())"),
    Attempt("read by a relative path", files, "escaped(open('../' * 20 + host['file']).read())"),
    Attempt("read by a symlink", files, "os.symlink(host['file'], 'lead'); escaped(open('lead').read())"),
    Attempt("read by a hard link", files, "os.link(host['file'], 'hard'); escaped(open('hard').read())"),
    Attempt("write a file", files, "escaped(open(host['file'], 'r+'))"),
    Attempt("truncate a file", files, "os.truncate(host['spare'], 1); escaped()"),
    Attempt("remove a file", files, "os.unlink(host['doomed']); escaped()"),
    Attempt("make a file beside it", files, "open(host['folder'] + '/new', 'x'); escaped()"),
    Attempt("list a folder", files, "escaped(os.listdir(host['folder']))"),
    Attempt("change a file's mode", own_files, "os.chmod(host['file'], 0o644); escaped()"),
    Attempt("see that a file exists", own_files, "escaped(os.stat(host['file']))"),
    Attempt("read another sandbox", files, "escaped(open(host['other']).read())"),
    Attempt("write to /usr", files, "open('/usr/claw-escape', 'x'); os.unlink('/usr/claw-escape'); escaped()"),
    Attempt("write to /etc", files, "open('/etc/claw-escape', 'x'); os.unlink('/etc/claw-escape'); escaped()"),
    Attempt("write to /", files, "open('/claw-escape', 'x'); os.unlink('/claw-escape'); escaped()"),
    Attempt("read /etc/shadow", files, "escaped(open('/etc/shadow').read())"),
    Attempt("make a device", rights, "os.mknod('disk', 0o60600, os.makedev(1, 0)); escaped()"),
    Attempt("read /dev/shm of the host", files, "escaped(open(host['shm']).read())"),
    Attempt("keep a descriptor of the host", always, "escaped(os.fstat(int(host['fd'])).st_ino == host['inode'])"),
    Attempt("read inherited secrets", always, "escaped('claw-secret' in ''.join(os.environ.values()))"),
    # network
    Attempt("connect to a port", network, "socket.create_connection(('127.0.0.1', host['tcp']), 5); escaped()"),
    Attempt(
        "connect by MPTCP",
        network,
        "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.settimeout(5);"
        " s.connect(('127.0.0.1', host['tcp'])); escaped()",
    ),
    Attempt(
        "send by UDP",
        network,
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('127.0.0.1', host['udp'])); s.send(b'x');"
        " s.settimeout(0.5); escaped(s.recv(1))",
    ),
    Attempt("abstract socket", network, "s = socket.socket(socket.AF_UNIX); s.connect(host['abstract']); escaped()"),
    Attempt("socket in a folder", network, "s = socket.socket(socket.AF_UNIX); s.connect(host['unix']); escaped()"),
    Attempt("raw socket", network, "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); escaped()"),
    Attempt("packet socket", network, "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3); escaped()"),
    Attempt("see network cards", own_network, "escaped({name for _, name in socket.if_nameindex()} - {'lo'})"),
    # processes
    Attempt("signal a process", processes, "os.kill(host['pid'], 0); escaped()"),
    Attempt("kill a process", processes, "os.kill(host['victim'], 9); escaped()"),
    Attempt("renice a process", own_processes, "os.setpriority(os.PRIO_PROCESS, host['pid'], 19); escaped()"),
    Attempt(
        "read a command line",
        processes,
        "escaped(b'claw-victim' in open(f'/proc/{host[\"pid\"]}/cmdline','rb').read())",
    ),
    Attempt("read an environment", processes, "escaped(open(f'/proc/{host[\"pid\"]}/environ', 'rb').read())"),
    Attempt("read files by /proc", processes, "escaped(os.listdir(f'/proc/{host[\"pid\"]}/root' + host['folder']))"),
    Attempt("trace a process", processes, "escaped(libc.ptrace(0x4206, host['pid'], 0, 0) == 0)"),
    Attempt(
        "read memory of a process",
        processes,
        "escaped(open(f'/proc/{host[\"pid\"]}/mem', 'rb'))",
    ),
    Attempt("see many processes", processes, "escaped(sum(name.isdigit() for name in os.listdir('/proc')) > 5)"),
    Attempt("shared memory segment", own_processes, "escaped(libc.shmget(host['segment'], 0, 0) >= 0)"),
    # rights
    Attempt(
        "hold capabilities",
        rights,
        "class D(ctypes.Structure): _fields_ = [(n, ctypes.c_uint32) for n in 'abc']\n"
        "data = (D * 2)(); libc.capget(struct.pack('Ii', 0x20080522, 0), data)\nescaped(data[0].a or data[1].a)",
    ),
    Attempt("become root", own_user, "os.setuid(0); escaped()"),
    Attempt("make a user namespace", rights, "escaped(libc.unshare(0x10000000) == 0)"),
    Attempt("make a network", rights, "escaped(libc.unshare(0x40000000) == 0)"),
    Attempt("clone into a namespace", rights, "escaped(libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) >= 0)"),
    Attempt(
        "mount a folder",
        rights,
        "os.mkdir('m'); done = libc.mount(b'none', b'm', b'tmpfs', 0, None) == 0; libc.umount(b'm'); escaped(done)",
    ),
    Attempt("change root", rights, "os.chroot('.'); escaped()"),
    Attempt("rename the machine", rights, "socket.sethostname(socket.gethostname()); escaped()"),
    Attempt("set the kernel", rights, "escaped(open('/proc/sys/kernel/core_pattern', 'r+'))"),
    Attempt("leave the cgroup", rights, "escaped(open('/sys/fs/cgroup/pids/cgroup.procs', 'r+'))"),
    Attempt("io_uring", rights, "escaped(libc.syscall(425, 1, ctypes.create_string_buffer(120)) >= 0)"),
    Attempt("eBPF", rights, "escaped(libc.syscall(321, 0, struct.pack('IIII', 2, 4, 8, 1) + bytes(104), 120) >= 0)"),
]
