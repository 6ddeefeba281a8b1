"""Which files an agent's program needs: scripts, environments of Python, shims; tried by running it in a sandbox."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from core.errors import InvalidInput
from core.harnesses import HarnessMissing, Job, harness_of
from core.harnesses.command import words_of
from core.rollouts.planning import Wish
from core.sandbox import choose
from core.service import Service
from tests.conftest import eventually

PROMPT = 'Say "hé" & $HOME'


def run(command: str, folder: Path, *readable: Path) -> str:
    """What a command line prints in a sandbox, for a user in ``folder``."""
    harness = harness_of("command", words_of(command, folder))
    program = harness.find()
    with choose().sandbox(readable=[*program.readable, *readable]) as sandbox:
        job = Job(PROMPT, "http://127.0.0.1:8100", "key", "model-1", sandbox.workspace, sandbox.home, seed=7)
        start = harness.start(program, job)
        ended = sandbox.run(start.command, env=start.env)
    assert ended.returncode == 0, ended.stderr.decode()
    return ended.stdout.decode().strip()


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """A folder with an agent in Python, one as a shell script, and a module beside them."""
    folder = tmp_path / "my agents"
    folder.mkdir()
    (folder / "agent.py").write_text("import sys\nprint(*sys.argv[1:], sep='|')\n")
    (folder / "agent.sh").write_text('#!/bin/sh\necho "$1"\n')
    (folder / "agent.sh").chmod(0o755)
    (folder / "with_module.py").write_text("import helper\nprint(helper.WORD)\n")
    (folder / "helper.py").write_text("WORD = 'helped'\n")
    return folder


def test_scripts_that_the_command_line_names(agents: Path) -> None:
    words = "{prompt} {model} {base_url} {seed} {other}"
    expected = f"{PROMPT}|model-1|http://127.0.0.1:8100/v1|7|{{other}}"
    for script in ("agent.py", "./agent.py", f"'{agents}/agent.py'", f"'../{agents.name}/agent.py'"):
        assert run(f"{sys.executable} {script} {words}", agents) == expected
    assert run("./agent.sh {prompt}", agents) == PROMPT
    assert run(f"{sys.executable} with_module.py {{prompt}}", agents, agents / "helper.py") == "helped"


def test_words_that_name_no_file_stay(agents: Path) -> None:
    (agents / "run").write_text("a file whose name is also a command's word")
    (agents / "sh").write_text("no program of PATH")
    command = "sh run --task={prompt} missing.py -c 'echo {prompt}; exit' " + "x/" * 5000
    assert words_of(command, agents)[:5] == ["sh", "run", "--task={prompt}", "missing.py", "-c"]
    assert words_of("python agent.py") == ["python", "agent.py"]
    with pytest.raises(InvalidInput, match="No closing quotation") as refused:
        words_of("sh -c 'echo {prompt}")
    assert refused.value.field == "command" and refused.value.hint


def test_the_python_of_an_environment_has_its_packages(tmp_path: Path) -> None:
    venv.create(tmp_path / "env", symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    Path(packages, "only_in_env.py").write_text("WORD = 'of the environment'\n")
    code = "'import only_in_env; print(only_in_env.WORD)'"
    assert run(f"env/bin/python -c {code} {{prompt}}", tmp_path) == "of the environment"


def test_a_shim_stands_for_the_program_that_it_chooses(
    agents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pyenv writes it; its own folder is not readable in a sandbox."""
    shims, manager = tmp_path / "shims", tmp_path / "libexec" / "pyenv"
    shims.mkdir()
    manager.parent.mkdir()
    shim = f'#!/usr/bin/env bash\nset -e\nprogram="${{0##*/}}"\nexec "{manager}" exec "$program" "$@"\n'
    (shims / "agent-1").write_text(shim)
    (shims / "agent-1").chmod(0o755)
    manager.write_text(f'#!/bin/sh\n[ "$1 $2" = "which agent-1" ] && echo "{agents}/agent.sh"\n')
    manager.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shims}{os.pathsep}{os.environ['PATH']}")
    assert run("agent-1 {prompt}", tmp_path) == PROMPT
    manager.write_text("#!/bin/sh\necho 'agent-1: command not found' >&2\nexit 127\n")
    with pytest.raises(HarnessMissing, match="agent-1: command not found"):
        harness_of("command", ["agent-1", "{prompt}"]).find()


def test_a_run_may_read_what_it_names(service: Service, pack: Path, agents: Path) -> None:
    """The supervisor gives the agent the script and the module, and no other file of their folder."""
    (agents / "secret.txt").write_text("private")
    (agents / "with_module.py").write_text(
        "import pathlib, helper\nprint(helper.WORD, flush=True)\n"
        "print(pathlib.Path(__file__).with_name('secret.txt').read_text())\n"
    )
    command = words_of(f"{sys.executable} with_module.py {{prompt}}", agents)
    tasks = sorted(path.name for path in pack.iterdir())[:1]
    wish = Wish(agent="command", command=command, readable=[str(agents / "helper.py")], model="demo-1", tasks=tasks)
    run = service.rollouts.start(str(pack), wish)
    eventually(lambda: service.rollouts.status(run)["progress"]["state"] == "finished", timeout_s=120)
    (attempt,) = run.attempts()
    log = (run.read_log(attempt) or b"").decode()
    assert log.startswith("helped\n"), log
    assert (attempt.isolation or {})["level"] == "process" or "private" not in log


@pytest.mark.parametrize("path", ["relative.py", "/no/such/file", "/", "/usr/.."])
def test_what_can_not_be_read_is_refused(path: str, service: Service, pack: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        service.rollouts.plan(str(pack), Wish(model="demo-1", readable=[path]))
    assert refused.value.field == "readable" and refused.value.hint
