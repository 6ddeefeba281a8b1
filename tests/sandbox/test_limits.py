"""Bombs, daemons and forged files: limits, the end of all processes, and reading the workspace back.

Every bomb ends by itself at a bound that the machine can bear.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.sandbox import Limits, Probed, Sandbox, interpreter
from core.sandbox.box import OUTPUT_BYTES, sweep_folders
from core.sandbox.cgroup import sweep
from core.sandbox.readback import copy, listing, read_bytes
from tests.conftest import eventually

MIB = 1 << 20
LIMITS = Limits(time_s=60.0, memory_bytes=128 * MIB, pids=24, file_bytes=4 * MIB, disk_bytes=12 * MIB, files=500)
PYTHON, PYTHON_FOLDERS = interpreter()


@pytest.fixture
def sandbox(layer: Probed) -> Iterator[Sandbox]:
    with layer.sandbox(readable=PYTHON_FOLDERS, limits=LIMITS) as one:
        yield one


def python(program: str) -> list[str]:
    return [PYTHON, "-I", "-S", "-c", program]


def running(token: str) -> list[int]:
    """Processes of the host with ``token`` in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if token.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def test_a_fork_bomb_stays_below_its_limit(sandbox: Sandbox) -> None:
    program = """
import os, sys, time
for n in range(80):
    try:
        if os.fork() == 0:
            time.sleep(3); os._exit(0)
    except OSError:
        break
print(n)
"""
    n_forks = int(sandbox.run(python(program)).stdout or -1)
    if sandbox.isolation.pids is None:
        assert n_forks == 79
        pytest.xfail(f"level {sandbox.isolation.level} has no limit of processes here")
    assert 0 < n_forks < LIMITS.pids


def test_one_process_stays_below_the_limit_of_memory(sandbox: Sandbox) -> None:
    ended = sandbox.run(python("b = bytearray(256 << 20); b[::4096] = b'x' * len(b[::4096]); print('all')"))
    assert b"all" not in ended.stdout
    if sandbox.isolation.memory == "cgroup":
        assert ended.end == "out_of_memory"


def test_processes_together_stay_below_the_limit_of_memory(sandbox: Sandbox) -> None:
    program = """
import os
pids = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        b = bytearray(64 << 20); b[::4096] = b'x' * len(b[::4096])
        import time; time.sleep(1.0); os._exit(0)
    pids.append(pid)
print(sum(os.waitpid(pid, 0)[1] == 0 for pid in pids))
"""
    n_whole = int(sandbox.run(python(program)).stdout or 0)
    if sandbox.isolation.memory != "cgroup":
        pytest.xfail(f"level {sandbox.isolation.level} limits the memory of each process only")
    assert n_whole < 4


def test_a_file_has_a_largest_size(sandbox: Sandbox) -> None:
    sandbox.run(python("f = open('big', 'wb')\nfor _ in range(32): f.write(bytes(1 << 20)); f.flush()"))
    sandbox.run(python("open('sparse', 'wb').truncate(1 << 40)"))
    sizes = {one.path: one.n_bytes for one in sandbox.listing().files}
    assert all(size <= LIMITS.file_bytes for size in sizes.values())
    assert sizes["big"] > 0


@pytest.mark.parametrize(
    "program",
    [
        "import time\nfor n in range(6): open(str(n), 'wb').write(b'x' * (4 << 20))\ntime.sleep(60)",
        "import time\nfor n in range(1000): open(str(n), 'wb')\ntime.sleep(60)",
    ],
    ids=["bytes", "files"],
)
def test_a_full_disk_ends_the_program(sandbox: Sandbox, program: str) -> None:
    assert sandbox.run(python(program)).end == "disk_full"


def test_time_is_limited(sandbox: Sandbox) -> None:
    ended = sandbox.run(python("import time; time.sleep(60)"), limits=Limits(time_s=1.0))
    assert ended.end == "timed_out"
    assert sandbox.run(python("import time; time.sleep(60)"), should_stop=lambda: True).end == "stopped"


def test_output_is_bounded(sandbox: Sandbox) -> None:
    ended = sandbox.run(python("import sys\nfor _ in range(32): sys.stdout.write('x' * (1 << 20))"))
    assert len(ended.stdout) <= min(OUTPUT_BYTES, LIMITS.file_bytes)


def test_a_daemon_ends_with_the_program(sandbox: Sandbox) -> None:
    token = f"claw-daemon-{os.getpid()}-{sandbox.isolation.level}"
    ended = sandbox.run(["sh", "-c", f"setsid nohup sleep 30.{os.getpid()} {token} & exit 0"])
    assert ended.returncode == 0
    program = f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(30)", "{token}"])
    os._exit(0)
"""
    assert sandbox.run(python(program)).returncode == 0
    if sandbox.isolation.level != "strict" and sandbox.isolation.pids != "cgroup":
        pytest.xfail(f"level {sandbox.isolation.level} ends the group of the program only")
    eventually(lambda: not running(token))


CALLER = """
import sys
from core.sandbox import interpreter, probed
from tests.sandbox.test_limits import LIMITS
layer = next(one for one in probed() if one.isolation.level == sys.argv[1])
with layer.sandbox(readable=interpreter()[1], limits=LIMITS) as sandbox:
    print(sandbox.workspace.parent, flush=True)
    sandbox.run(["sh", "-c", f"(setsid sh -c 'sleep 45; : {sys.argv[2]}' &) ; sleep 45; : {sys.argv[2]}"])
"""


def test_all_ends_when_the_caller_is_killed(layer: Probed) -> None:
    token = f"claw-orphan-{os.getpid()}-{layer.isolation.level}"
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, layer.isolation.level, token], stdout=subprocess.PIPE, text=True
    )
    assert caller.stdout is not None
    folder = Path(caller.stdout.readline().strip())
    eventually(lambda: len([pid for pid in running(token) if pid != caller.pid]) >= 2, timeout_s=60.0)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    caller.stdout.close()
    try:
        if layer.isolation.dies_with_parent == "all":
            eventually(lambda: not running(token))
        else:
            eventually(lambda: len(running(token)) <= 2)
        if layer.isolation.pids == "cgroup":
            sweep()
            assert not [one for one in Path("/sys/fs/cgroup").glob(f"**/claw-{caller.pid}-*")]
            eventually(lambda: not running(token))
    finally:
        for pid in running(token):
            os.kill(pid, signal.SIGKILL)
        from core.sandbox.box import remove

        remove(folder)


def test_a_planted_usercustomize_reaches_no_other_sandbox(layer: Probed, sandbox: Sandbox) -> None:
    """ClawGym's forgery: the agent plants a module in its home; the check must not load it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    plant = f"d=$HOME/.local/lib/{version}/site-packages; mkdir -p $d; echo 'print(1.0)' > $d/usercustomize.py"
    assert (
        sandbox.run(["sh", "-c", f"{plant}; cp $d/usercustomize.py .; cp usercustomize.py sitecustomize.py"]).returncode
        == 0
    )
    base = f"{sys.base_prefix}/bin/{version}"
    assert sandbox.run([base, "-c", "print(0.0)"]).stdout.split() == [b"1.0", b"0.0"]
    with layer.sandbox(readable=PYTHON_FOLDERS) as fresh:
        fresh.copy_in(sandbox.workspace)
        assert fresh.run([base, "-c", "print(0.0)"]).stdout.split() == [b"0.0"]


PLANTED = {
    "a symlink": "ln -s {secret} x",
    "a symlinked folder": "ln -s {folder} d",
    "a link to a link": "ln -s y x; ln -s {secret} y",
    "a hard link": "ln {secret} x",
    "a fifo": "mkfifo x",
    "a socket": "{python} -I -S -c \"import socket; socket.socket(socket.AF_UNIX).bind('x')\"",
    "a closed folder": "mkdir x; echo no > x/y; chmod 0 x",
    "a deep folder": "{python} -I -S -c \"import os\nfor n in range(80): os.mkdir('d'); os.chdir('d')\"",
}


@pytest.mark.parametrize("name", PLANTED)
def test_reading_back_leads_nowhere_else(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret of the host")
    tmp_path.chmod(0o755)
    script = PLANTED[name].format(secret=secret, folder=tmp_path, python=PYTHON)
    sandbox.run(["sh", "-c", f"echo mine > own; {script}"])
    target = tmp_path / "copy"
    target.mkdir()
    there = copy(sandbox.workspace, target)
    assert sandbox.read_bytes("own") == b"mine\n"
    assert (target / "own").read_bytes() == b"mine\n"
    for file in there.files:
        assert b"secret" not in read_bytes(sandbox.workspace, file.path)
    for path in ("x", "d/secret", "../secret", str(secret)):
        try:
            assert b"secret" not in sandbox.read_bytes(path)
        except OSError:
            continue
    if name != "a closed folder" and not (name in ("a hard link", "a socket") and not there.refused):
        assert there.refused, "what was planted is named"


def test_links_inside_the_workspace_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(b"1")
    os.link(tmp_path / "a" / "one", tmp_path / "two")
    there = listing(tmp_path)
    assert [one.path for one in there.files] == ["a/one", "two"]
    assert there.folders == ("a",) and there.refused == {}
    assert read_bytes(tmp_path, "two") == b"1"
    assert listing(tmp_path, max_bytes=1).refused == {"two": "more than 1 bytes"}
    assert list(listing(tmp_path, max_files=2).refused) == ["two"]


def test_a_share_of_processors_holds(sandbox: Sandbox) -> None:
    """A busy program with a tenth of a processor, for a second of wall time: 0.1 s of work, in periods of 0.1 s."""
    if sandbox.isolation.processors is None:
        pytest.xfail(f"level {sandbox.isolation.level} has no limit of processors here")
    program = "import time; end = time.monotonic() + 1\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    limits = Limits(time_s=60.0, memory_bytes=128 * MIB, processors=0.1)
    assert float(sandbox.run(python(program), limits=limits).stdout) < 0.35


def test_processor_time_and_memory_are_those_that_were_used(sandbox: Sandbox) -> None:
    program = """
import os, resource, subprocess, sys, time
kept = bytearray(40 << 20); kept[::4096] = b"x" * len(kept[::4096])
while time.process_time() < 0.3:
    pass
subprocess.run([sys.executable, "-I", "-S", "-c", "import time\\nwhile time.process_time() < 0.3: pass"], check=True)
print(sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
"""
    ended = sandbox.run(python(program))
    used = float(ended.stdout)
    if sandbox.isolation.memory != "cgroup":
        assert (ended.cpu_s, ended.memory_bytes) == (None, None)
        return
    assert ended.cpu_s is not None and used <= ended.cpu_s + 0.02 and ended.cpu_s < used + 1.0
    assert ended.memory_bytes is not None and 40 * MIB < ended.memory_bytes <= LIMITS.memory_bytes
    stopped = sandbox.run(python("while True: pass"), limits=Limits(time_s=2.0))
    assert stopped.end == "timed_out" and stopped.cpu_s is not None and 0.0 < stopped.cpu_s < 4.0


def test_folders_of_killed_processes_are_removed(
    layer: Probed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with layer.sandbox() as living:
        program = "import os, tempfile; from core.sandbox import choose; "
        program += f"tempfile.tempdir = {str(tmp_path)!r}; one = choose().sandbox(); os._exit(1)"
        subprocess.run([sys.executable, "-c", program], check=False)
        assert len(list(tmp_path.iterdir())) == 2
        assert sweep_folders() == 0
        assert sweep_folders(older_than_s=-1) == 1
        assert list(tmp_path.iterdir()) == [living.workspace.parent]
        assert living.run(["sh", "-c", "true"]).returncode == 0


def test_files_of_the_home_belong_to_the_program(sandbox: Sandbox) -> None:
    sandbox.put_home({"config/agent.json": b"{}"})
    ended = sandbox.run(["sh", "-c", "echo 1 >> $HOME/config/agent.json && cat $HOME/config/agent.json"])
    assert (ended.returncode, ended.stdout) == (0, b"{}1\n"), ended.stderr
    assert sandbox.listing().files == ()
