"""Runs the program of a check: in a new sandbox, on a copy of the workspace, in an environment that is recorded."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import platform
import shlex
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from core.rewards.base import Outcome, Unscored, seconds
from core.sandbox import Ended, Limits, Sandbox, choose, interpreter, parse_level
from core.sandbox.box import PATH, remove
from core.sandbox.readback import read_bytes

T = TypeVar("T")

TIMEOUT_S = 120.0
MAX_RESULT_BYTES = 4 << 20
TAIL_CHARS = 2000
_ENDS: dict[str, Outcome] = {"timed_out": "timed_out", "out_of_memory": "crashed", "disk_full": "crashed"}
# A link to the interpreter would leave its environment: Python finds that by the path it is started as.
_START = '#!/bin/sh\nexec {python} "$@"\n'

_should_stop: ContextVar[Callable[[], bool]] = ContextVar("should_stop", default=lambda: False)


@contextmanager
def stopped_when(should_stop: Callable[[], bool]) -> Iterator[None]:
    """Checks of this thread inside the block are ended, without a score, as soon as ``should_stop`` returns True."""
    token = _should_stop.set(should_stop)
    try:
        yield
    finally:
        _should_stop.reset(token)


class CheckBox:
    """A sandbox with a copy of the workspace and a fresh home, in which one check runs.

    ``python`` and ``python3`` on the PATH are the interpreter of the studio, with its packages. There is no network as
    far as the level of isolation promises.

    Attributes:
        workspace, home: folders of the check; the same paths inside and outside.
        bin: folder with ``python`` and ``python3``.
    """

    def __init__(self, sandbox: Sandbox, timeout_s: float) -> None:
        self._sandbox = sandbox
        self._timeout_s = timeout_s
        self._imported: set[str] = set()
        self._own: set[str] = set()
        self._before: dict[str, str] | None = None
        self.workspace, self.home = sandbox.workspace, sandbox.home
        start = _START.format(python=shlex.quote(sys.executable))
        self.bin = self.lend_files({"python": start, "python3": start})

    def lend(self, folder: Path) -> Path:
        """Copy a folder to where the check can read it, outside the workspace; the path of the copy."""
        self._note_imports(folder)
        return self._sandbox.lend(folder)

    def place(self, folder: Path, at: str) -> Path:
        """Copy a folder into the workspace at ``at``, in place of what is there; the path of the copy."""
        self._note_imports(folder)
        self._sandbox.copy_in(folder, at=at)
        return self.workspace / at

    def put(self, name: str, content: bytes) -> Path:
        """Write a file at the top of the workspace, in place of what has this name; its path."""
        path = self.workspace / name
        if path.is_dir() and not path.is_symlink():
            remove(path)
        self._sandbox.put({name: content})
        return path

    def lend_files(self, files: Mapping[str, str]) -> Path:
        """Write files to a folder that the check can read, outside the workspace; its path."""
        with tempfile.TemporaryDirectory(prefix="claw-lent-") as folder:
            for name, text in files.items():
                path = Path(folder, name)
                path.write_text(text, encoding="utf-8", errors="surrogateescape")
                path.chmod(0o755)
            return self.lend(Path(folder))

    def _note_imports(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*.py")):
            self._own |= {path.stem, path.relative_to(folder).parts[0]}
            self._imported |= imported_modules(path.read_bytes())

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        check: bool = True,
    ) -> Ended:
        """Run a program in ``cwd``, by default the check's home: not in the workspace.

        A program of the check must not find modules among the agent's files.

        Args:
            command: program and arguments.
            env: added to PATH, HOME, TMPDIR and the locale.
            cwd: working folder.
            check: an exit code that is not 0 is a crash.

        Raises:
            Unscored: it did not end in time, broke a limit, or crashed.
        """
        inside = {"PATH": f"{self.bin}:{PATH}", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
        moved = ["/bin/sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(cwd or self.home), *command]
        ended = self._sandbox.run(moved, env=inside, should_stop=_should_stop.get())
        if ended.end != "exited":
            message = f"the check was ended: {ended.end.replace('_', ' ')}"
            if ended.end == "timed_out":
                message = f"the check did not end within {self._timeout_s:g} s"
            raise Unscored(_ENDS.get(ended.end, "crashed"), message, output_of(ended))
        if check and ended.returncode != 0:
            last = (ended.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
            raise Unscored("crashed", f"the check ended with code {ended.returncode}: {last}", output_of(ended))
        return ended

    def watch(self) -> None:
        """Remember the files of the workspace; ``written`` then names those that changed."""
        self._before = self._hashes()

    def written(self) -> dict[str, Any]:
        """``{written: paths}`` of files that were made, changed or removed since ``watch``; empty without it."""
        if self._before is None:
            return {}
        before, after = self._before, self._hashes()
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        return {"written": sorted(changed)}

    def _hashes(self) -> dict[str, str]:
        return {
            one.path: hashlib.sha256(self._sandbox.read_bytes(one.path)).hexdigest()
            for one in self._sandbox.listing().files
        }

    def result(self, path: str) -> bytes | None:
        """A file that the check wrote into its home, up to 4 MiB; None if there is none, or it is a link."""
        try:
            return read_bytes(self.home, path, max_bytes=MAX_RESULT_BYTES)
        except OSError:
            return None

    def environment(self) -> dict[str, Any]:
        """What a score depends on besides workspace and check: Python, packages, isolation.

        ``packages`` has the version of every module outside the standard library that the check imports, or None where
        it is missing; ``packages_sha256`` covers all that are installed.
        """
        return {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "packages": {name: version_of(name) for name in sorted(self._imported - self._own)},
            "packages_sha256": packages_digest(),
            "isolation": self._sandbox.isolation.as_dict(),
        }


@contextmanager
def check_box(workspace: Path, spec: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S) -> Iterator[CheckBox]:
    """A box with a copy of the workspace. Links are not copied.

    ``spec["isolation"]`` demands a level of ``core.sandbox``; without it, the best of this machine is used.
    ``spec["timeout_s"]`` limits the time of each program. With ``spec["watch"]``, verifiers add ``written`` to the
    details: the files of the workspace that the check changed.

    Raises:
        Unscored: the workspace is too large.
        InvalidInput: there is no such level, or the time limit is no number.
        IsolationMissing: the machine has no such level.
    """
    layer = choose(parse_level(spec.get("isolation", "process"), "check.isolation"))
    limit = seconds(spec, timeout_s)
    with layer.sandbox(readable=interpreter()[1], limits=Limits(time_s=limit)) as sandbox:
        box = CheckBox(sandbox, limit)
        try:
            too_much = [one for one in sandbox.copy_in(workspace).refused.values() if one.startswith("more than")]
            if too_much:
                raise Unscored("refused", f"the workspace is too large for the check: {too_much[0]}")
            yield box
        except Unscored as error:
            error.environment = box.environment()
            raise


def output_of(ended: Ended) -> dict[str, Any]:
    """The end of what a program printed, for details."""
    texts = {"stdout": ended.stdout, "stderr": ended.stderr}
    return {name: text.decode(errors="replace")[-TAIL_CHARS:] for name, text in texts.items() if text.strip()}


def imported_modules(source: bytes) -> set[str]:
    """Top-level modules outside the standard library that a program imports; empty if it is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names


def once(made: Callable[[], T]) -> Callable[[], T]:
    """Make a value at the first call, and keep it. Threads that come meanwhile wait: it takes a while to make."""
    lock, kept = threading.Lock(), list[T]()

    @functools.wraps(made)
    def get() -> T:
        with lock:
            if not kept:
                kept.append(made())
            return kept[0]

    return get


@once
def _distributions() -> dict[str, list[str]]:
    return {name: list(owners) for name, owners in importlib.metadata.packages_distributions().items()}


@functools.cache
def version_of(module: str) -> str | None:
    """Version of the package that has a top-level module of this name, as ``name version``; None if there is none."""
    owners = sorted(set(_distributions().get(module, ())))
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in owners) or None


@once
def packages_digest() -> str:
    """SHA-256 over names and versions of all installed packages, 64 hex digits."""
    # Each access to ``metadata`` or ``version`` reads and parses a file.
    about = (one.metadata for one in importlib.metadata.distributions())
    installed = sorted((str(one["Name"]).lower(), one["Version"]) for one in about)
    return hashlib.sha256(json.dumps(installed).encode()).hexdigest()
