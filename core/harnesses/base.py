"""The interface of harnesses: how an agent is started once on a task, inside a sandbox."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.errors import StudioError
from core.sandbox.base import MIB, interpreter

KEY_PLACE = "[session key]"
SHIM = re.compile(rb'^exec "(/[^"\n]+/(?:pyenv|nodenv))" exec ', re.MULTILINE)
"""The last line of a shim: a script on PATH in place of the program, whose version it chooses."""
SHIM_BYTES = 4096
SHIM_S = 30.0


class HarnessMissing(StudioError):
    """The program of a harness is not installed on this machine."""

    type = "harness_missing"
    http_status = 422


@dataclass(frozen=True, slots=True)
class Job:
    """What an agent is to do, as seen from inside the sandbox.

    Attributes:
        prompt: the task's text.
        root: root URL of the gateway, ``http://127.0.0.1:8100``.
        api_key: the attempt's session key.
        model: name of the model to ask for.
        workspace, home: folders that the agent may write.
        seed: sampling seed; used only by harnesses that can pass one on.
        time_s: time limit, seconds.
    """

    prompt: str
    root: str
    api_key: str
    model: str
    workspace: Path
    home: Path
    seed: int | None = None
    time_s: float = 900.0

    @property
    def base_url(self) -> str:
        """Base URL for OpenAI's clients."""
        return f"{self.root}/v1"


@dataclass(frozen=True, slots=True)
class Start:
    """How the agent is started.

    Attributes:
        command: program and arguments.
        env: added to the sandbox's environment.
        home: path relative to the home -> content of a file that is written there first.
        stdin: its input.
    """

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    home: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""


@dataclass(frozen=True, slots=True)
class Program:
    """An installed program.

    Attributes:
        path: the file itself, links resolved.
        readable: files and folders that it needs and that are not the system's.
        folders: folders for PATH, before the system's.
    """

    path: Path
    readable: Sequence[Path] = ()
    folders: Sequence[Path] = ()

    def env(self) -> dict[str, str]:
        """PATH with the program's folders first."""
        if not self.folders:
            return {}
        return {"PATH": os.pathsep.join([*map(str, self.folders), "/usr/local/bin:/usr/bin:/bin"])}


@dataclass(frozen=True, slots=True)
class Harness:
    """One agent.

    Attributes:
        name: its name in commands, prompt groups and metadata.
        title: what it is.
        find: finds its program on this machine; raises HarnessMissing.
        start: how it is started on a job.
        memory_mb, cpu_s: measured peak of memory, MiB, and processor time, seconds, of an attempt with five model
            calls (``bench/rollouts``). The default number of workers comes from them.
        time_s: default time limit, seconds.
    """

    name: str
    title: str
    find: Callable[[], Program]
    start: Callable[[Program, Job], Start]
    memory_mb: int
    cpu_s: float
    time_s: float = 900.0

    @property
    def memory_limit(self) -> int:
        """Default memory limit of an attempt, bytes: four times what was measured, at least 1 GiB."""
        return max(1024, 4 * self.memory_mb) * MIB


def find_program(name: str, *, hint: str) -> Program:
    """The program ``name`` on PATH, with what it needs to run.

    A script of Node.js gets the Node.js beside it, or that of PATH; a script or the Python of an environment gets that
    environment. A shim of pyenv or nodenv stands for the program that it chooses.

    Raises:
        HarnessMissing: there is no such program.
    """
    on_path = shutil.which(name)
    if on_path is None:
        raise HarnessMissing(f"there is no program {name} on PATH", field="agent", hint=hint)
    place = _behind_shim(Path(on_path).absolute(), hint)
    path = place.resolve()
    readable, folders = [_package(path)], []
    if (place.parent.parent / "pyvenv.cfg").is_file() and path.name.startswith("python"):
        # Resolved, it would be the Python below the environment, which has none of its packages.
        readable.append(place.parent.parent)
        path = place
    interpreter_name, interpreter_path = _shebang(path)
    if interpreter_name == "node":
        beside = place.parent / "node"
        node = str(beside) if beside.exists() else shutil.which("node")
        if node is None:
            raise HarnessMissing(f"{name} needs Node.js, which is not on PATH", field="agent", hint="install node")
        real = Path(node).resolve()
        readable.append(_package(real))
        folders.append(real.parent)
    elif interpreter_path is not None:
        readable += [interpreter_path.parent.parent, interpreter_path.resolve().parent.parent]
    return Program(path, _not_system(readable), [one for one in folders if not one.is_relative_to("/usr")])


def this_python(*more: Path) -> Program:
    """This Python with its environment, and further files that it may read."""
    python, folders = interpreter()
    return Program(Path(python), _not_system([*folders, *more]))


def own_file(name: str) -> Path:
    """A file of this installation, ``core/NAME``."""
    return Path(sys.modules["core"].__path__[0]) / name


def _behind_shim(place: Path, hint: str) -> Path:
    """The program that a shim stands for; any other program is itself.

    Raises:
        HarnessMissing: the shim has no program.
    """
    try:
        with place.open("rb") as file:
            start = file.read(SHIM_BYTES)
    except OSError:  # a program may be executable and not readable
        return place
    shim = SHIM.search(start) if start.startswith(b"#!") else None
    if shim is None:
        return place
    try:
        asked = subprocess.run(
            [os.fsdecode(shim[1]), "which", place.name], capture_output=True, text=True, timeout=SHIM_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        message = (getattr(error, "stderr", None) or str(error)).strip()
        raise HarnessMissing(f"{place} has no program behind it: {message}", field="agent", hint=hint) from error
    return Path(asked.stdout.strip())


def _package(path: Path) -> Path:
    """What must be readable for a program: its whole ``node_modules``, its environment, or the file alone."""
    outermost = path
    for parent in path.parents:
        if parent.name == "node_modules":
            outermost = parent
        elif (parent / "pyvenv.cfg").is_file():
            return parent
    if outermost is path and path.parent.name == "bin" and (path.parent.parent / "lib").is_dir():
        return path.parent.parent
    return outermost


def _shebang(path: Path) -> tuple[str, Path | None]:
    """Name of the interpreter of a script, and its path if it is one of Python; ("", None) for other files."""
    try:
        with path.open("rb") as file:
            line = file.readline(512)
    except OSError:  # a program may be executable and not readable
        return "", None
    if not line.startswith(b"#!"):
        return "", None
    words = line[2:].decode(errors="replace").split()
    program = next((word for word in words if not word.endswith("/env") and not word.startswith("-")), "")
    name = Path(program).name
    return name, Path(program) if name.startswith("python") and program.startswith("/") else None


def _not_system(paths: Sequence[Path]) -> list[Path]:
    return [one for one in dict.fromkeys(paths) if one != Path("/") and not one.is_relative_to("/usr")]
