"""The level in force: demanded, refused, never claimed beyond what was shown; and the way to the gateway."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from core.errors import InvalidInput
from core.rewards import score
from core.sandbox import IsolationMissing, Limits, Probed, choose, interpreter, parse_level, probed
from core.sandbox import probe as probing
from core.sandbox.bwrap import Bubblewrap
from core.sandbox.isolation import LEVELS
from core.sandbox.process import ProcessGroup

PYTHON, PYTHON_FOLDERS = interpreter()


def test_the_best_layer_is_chosen_and_names_why_it_is_no_better() -> None:
    levels = [one.isolation.level for one in probed()]
    assert levels == sorted(levels, key=LEVELS.index, reverse=True) and levels[-1] == "process"
    best = choose()
    assert best.isolation.level == levels[0]
    assert best.isolation.level == "strict" or any(line.startswith("strict") for line in best.isolation.why)


def test_a_demanded_level_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weak = Probed(ProcessGroup(), probing.replace(ProcessGroup.promises, why=("strict: no program bwrap",)))
    monkeypatch.setattr(probing, "probed", lambda: (weak,))
    assert choose("process") is weak
    with pytest.raises(IsolationMissing, match="no program bwrap"):
        choose("strict")
    (tmp_path / "check.py").write_text("print('{\"a\": 1}')")
    check = {"verifier": "code_check", "program": str(tmp_path / "check.py")}
    with pytest.raises(IsolationMissing):
        score(tmp_path, {**check, "isolation": "strict"})
    assert score(tmp_path, check).value == 1.0
    with pytest.raises(InvalidInput, match="no isolation level 'safe'"):
        parse_level("safe")


class Boastful(ProcessGroup):
    """A layer that claims what it does not do."""

    promises = Bubblewrap("system", None).promises


def test_a_claim_that_does_not_hold_is_found() -> None:
    assert probing._broken_promise(Boastful(), Boastful.promises) == "the program can open files of the host"


def test_only_the_gateway_is_reached(layer: Probed) -> None:
    """A real server on the host; inside, its answer arrives at the address that the sandbox names."""

    def answer(server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"gateway got " + connection.recv(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        gateway = server.getsockname()
        with layer.sandbox(gateway=gateway, readable=PYTHON_FOLDERS, limits=Limits(time_s=120.0)) as sandbox:
            assert sandbox.gateway is not None
            program = (
                "import socket, sys\n"
                "s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)\n"
                "s.sendall(b'hello'); s.shutdown(1); print(s.recv(100).decode())\n"
                "try: socket.create_connection(('127.0.0.1', int(sys.argv[3])), 5); print('other')\n"
                "except OSError: print('alone')"
            )
            host, port = sandbox.gateway
            ended = sandbox.run([PYTHON, "-I", "-S", "-c", program, host, str(port), str(other.getsockname()[1])])
        server.shutdown(socket.SHUT_RDWR)
    lines = ended.stdout.decode().splitlines()
    assert lines[:1] == ["gateway got hello"], ended.stderr.decode()
    assert lines[1] == ("other" if layer.isolation.network == "open" else "alone")


@pytest.mark.parametrize("layer", probed(), ids=lambda one: one.isolation.level)
def test_a_program_that_needs_no_python_reaches_the_gateway(layer: Probed) -> None:
    """The forwarder's own files are there without being asked for."""
    with socket.create_server(("127.0.0.1", 0)) as server, layer.sandbox(gateway=server.getsockname()[:2]) as sandbox:
        ended = sandbox.run(["sh", "-c", "echo started"], limits=Limits(time_s=60))
    assert (ended.returncode, ended.stdout) == (0, b"started\n"), ended.stderr
