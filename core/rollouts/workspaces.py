"""Final workspaces of attempts, stored by content: what changed against the task's inputs, and how to restore it.

``blobs/`` has each file content once, named by its SHA-256; ``manifests/`` has one JSON file per workspace, named by
the SHA-256 of its text. A workspace equal to its inputs costs one manifest. Files are read as ``core.sandbox.readback``
reads them: no link is followed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import orjson

from core.durable import sync_folder
from core.errors import InvalidInput, NotFound
from core.packs.model import PackFile
from core.packs.paths import check_path, check_paths
from core.sandbox.readback import listing, read_bytes

MIB = 1 << 20
REMOVED = "removed.log"
_DIGEST = re.compile(r"[0-9a-f]{64}")

Kind = Literal["added", "changed", "removed"]


@dataclass(frozen=True, slots=True)
class WorkspaceLimits:
    """What is stored of one workspace; the rest is listed in ``Workspace.left_out``.

    Attributes:
        files: files and folders.
        bytes_: of all files together.
        file_bytes: of one file.
    """

    files: int = 10_000
    bytes_: int = 64 * MIB
    file_bytes: int = 16 * MIB


LIMITS = WorkspaceLimits()


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file: SHA-256 of its content, size in bytes, and whether it is executable."""

    sha256: str
    n_bytes: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Workspace:
    """A stored workspace.

    Attributes:
        inputs: path -> file, as the agent found it.
        files: path -> file, as the agent left it.
        folders: folders without files.
        left_out: path -> why the file was not stored (links, limits).
    """

    inputs: Mapping[str, StoredFile]
    files: Mapping[str, StoredFile]
    folders: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """One file that differs from the inputs; None where it does not exist."""

    path: str
    kind: Kind
    before: StoredFile | None
    after: StoredFile | None


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a retention run removed, with the digests of the workspaces, and what is left, in bytes."""

    n_workspaces: int
    n_blobs: int
    n_bytes: int
    n_bytes_left: int
    workspaces: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Removed:
    """When retention removed a workspace, seconds since the epoch, and by which rule."""

    at: float
    why: str

    def text(self) -> str:
        """One sentence without its end."""
        return f"retention removed it on {datetime.fromtimestamp(self.at, UTC):%Y-%m-%d}: {self.why}"


class WorkspaceStore:
    """Workspaces below ``folder``. Several processes may use it at the same time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blobs, self._manifests = folder / "blobs", folder / "manifests"

    def put(self, workspace: Path, inputs: Mapping[str, PackFile], limits: WorkspaceLimits = LIMITS) -> str:
        """Store the workspace that an agent left; on disk when this returns.

        Args:
            workspace: its folder. Nothing must write to it meanwhile.
            inputs: path -> file, with which the workspace began.

        Returns:
            The digest of the workspace, 64 hex digits. Equal workspaces with equal inputs have the same.

        Raises:
            OSError: it can't be written.
        """
        with self._locked(fcntl.LOCK_SH):
            before = {path: self._add(one.content, one.executable) for path, one in sorted(inputs.items())}
            there = listing(workspace, max_files=limits.files, max_bytes=limits.bytes_)
            left_out = {_shown(path): reason for path, reason in there.refused.items()}
            after: dict[str, StoredFile] = {}
            for file in there.files:
                if file.n_bytes > limits.file_bytes:
                    left_out[_shown(file.path)] = f"more than {limits.file_bytes} bytes"
                    continue
                try:
                    check_path(file.path, "workspace")
                except InvalidInput:
                    left_out[_shown(file.path)] = "its name can't be stored"
                    continue
                try:
                    content = read_bytes(workspace, file.path, max_bytes=limits.file_bytes)
                except OSError as error:
                    left_out[_shown(file.path)] = str(error)
                    continue
                after[file.path] = self._add(content, file.executable)
            inner = {parent for path in (*after, *there.folders) for parent in _parents(path)}
            manifest = {
                "inputs": _files_json(before),
                "files": _files_json(after),
                "folders": [path for path in there.folders if path not in inner and path == _shown(path)],
                "left_out": dict(sorted(left_out.items())),
            }
            text = orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)
            digest = hashlib.sha256(text).hexdigest()
            self._write(self._manifests / digest[:2] / f"{digest}.json", text)
            return digest

    def has(self, digest: str) -> bool:
        """Whether the workspace is still stored."""
        return self._manifest_path(digest).is_file()

    def get(self, digest: str) -> Workspace:
        """The files of a workspace.

        Raises:
            NotFound: it was never stored, or retention removed it.
            InvalidInput: its manifest is damaged.
        """
        try:
            text = self._manifest_path(digest).read_bytes()
        except FileNotFoundError:
            removed = self.removed().get(digest)
            why = "it was never stored here" if removed is None else removed.text()
            raise NotFound(f"the workspace {digest[:12]} is not stored: {why}", field="workspace") from None
        if hashlib.sha256(text).hexdigest() != digest:
            raise InvalidInput(f"the manifest of workspace {digest[:12]} is damaged", field="workspace")
        data = orjson.loads(text)
        inputs, files = ({p: StoredFile(*one) for p, one in data[name].items()} for name in ("inputs", "files"))
        return Workspace(inputs, files, tuple(data["folders"]), data["left_out"])

    def changes(self, digest: str) -> list[Change]:
        """The files that differ from the inputs, in order of path. NotFound as in ``get``."""
        stored = self.get(digest)
        changes = []
        for path in sorted({*stored.inputs, *stored.files}):
            before, after = stored.inputs.get(path), stored.files.get(path)
            # What was not stored is no removal: the file is there, and its content is not known.
            if before == after or (after is None and path in stored.left_out):
                continue
            kind: Kind = "added" if before is None else "removed" if after is None else "changed"
            changes.append(Change(path, kind, before, after))
        return changes

    def read(self, file: StoredFile) -> bytes:
        """Content of a stored file.

        Raises:
            NotFound: retention removed it.
            InvalidInput: it is damaged.
        """
        try:
            content = self._blob_path(file.sha256).read_bytes()
        except FileNotFoundError:
            raise NotFound(f"the file {file.sha256[:12]} is not stored", field="workspace") from None
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise InvalidInput(f"the stored file {file.sha256[:12]} is damaged", field="workspace")
        return content

    def restore(self, digest: str, into: Path) -> Workspace:
        """Write a workspace as the agent left it to the empty folder ``into``; what is missing is in ``left_out``.

        Raises:
            InvalidInput: the folder is not empty, or the stored workspace is damaged.
            NotFound: the workspace is not stored.
        """
        into.mkdir(parents=True, exist_ok=True)
        if any(into.iterdir()):
            raise InvalidInput(f"{into} is not empty", field="into", hint="name a new folder")
        with self._locked(fcntl.LOCK_SH):
            stored = self.get(digest)
            check_paths(stored.files, "workspace")
            for folder in stored.folders:
                (into / folder).mkdir(parents=True, exist_ok=True)
            for path, file in stored.files.items():
                target = into / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.read(file))
                target.chmod(0o755 if file.executable else 0o644)
            return stored

    def removed(self) -> dict[str, Removed]:
        """Digest -> when and why retention removed the workspace. Some may have been stored again since."""
        removed = {}
        with contextlib.suppress(FileNotFoundError):
            for line in (self.folder / REMOVED).read_bytes().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    entry = orjson.loads(line)
                    removed[str(entry["workspace"])] = Removed(float(entry["at"]), str(entry["why"]))
        return removed

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Within it, nothing is removed, and the times of files are those of the last use."""
        with self._locked(fcntl.LOCK_SH):
            yield

    def prune(self, *, now: float, older_than_s: float | None = None, max_bytes: int | None = None) -> Pruned:
        """The retention rule: remove workspaces that are too old, then the oldest until the rest has ``max_bytes``.

        What is to be removed, and why, is in the file ``removed.log`` before anything is: see ``removed``.

        Args:
            now: seconds since the epoch.
            older_than_s: age from which a workspace is removed; None: no limit.
            max_bytes: size of all stored files together; None: no limit.
        """
        with self._locked(fcntl.LOCK_EX):
            manifests = sorted(self._manifests.glob("*/*.json"), key=lambda path: path.stat().st_mtime)
            sizes = {path.name: path.stat().st_size for path in self._blobs.glob("*/*")}
            users: dict[str, int] = {}
            blobs_of: dict[Path, set[str]] = {}
            for path in manifests:
                with contextlib.suppress(NotFound, InvalidInput):
                    stored = self.get(path.stem)
                    blobs_of[path] = {one.sha256 for one in (*stored.inputs.values(), *stored.files.values())}
                    for sha256 in blobs_of[path]:
                        users[sha256] = users.get(sha256, 0) + 1
            n_bytes = sum(sizes.values())
            unused = set(sizes) - set(users)
            n_left = n_bytes - sum(sizes[one] for one in unused)
            going: dict[Path, str] = {}
            for path in manifests:
                too_old = older_than_s is not None and now - path.stat().st_mtime > older_than_s
                too_much = max_bytes is not None and n_left > max_bytes
                if not (too_old or too_much):
                    continue
                going[path] = (
                    f"older than {_days(older_than_s)}"
                    if too_old
                    else f"all workspaces together had more than {(max_bytes or 0) / (1 << 30):.3g} GiB"
                )
                for sha256 in blobs_of.get(path, ()):
                    users[sha256] -= 1
                    if users[sha256] == 0:
                        unused.add(sha256)
                        n_left -= sizes.get(sha256, 0)
            self._note_removed({path.stem: why for path, why in going.items()}, now)
            for path in going:
                path.unlink()
            for sha256 in unused:
                self._blob_path(sha256).unlink(missing_ok=True)
            digests = frozenset(path.stem for path in going)
            return Pruned(len(going), len(unused), n_bytes - n_left, n_left, digests)

    def _note_removed(self, reasons: Mapping[str, str], now: float) -> None:
        """Append to ``removed.log``; on disk when this returns."""
        if not reasons:
            return
        lines = [orjson.dumps({"workspace": digest, "at": now, "why": why}) + b"\n" for digest, why in reasons.items()]
        with (self.folder / REMOVED).open("ab") as file:
            # A line that a crash has cut must not run into the first of these.
            file.write(b"\n" * (file.tell() > 0) + b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.folder)

    def _add(self, content: bytes, executable: bool) -> StoredFile:
        sha256 = hashlib.sha256(content).hexdigest()
        self._write(self._blob_path(sha256), content)
        return StoredFile(sha256, len(content), executable)

    def _blob_path(self, sha256: str) -> Path:
        return self._blobs / sha256[:2] / sha256

    def _manifest_path(self, digest: str) -> Path:
        if not _DIGEST.fullmatch(digest):
            raise InvalidInput(f"{digest[:80]!r} is no digest", field="workspace", hint="64 hex digits")
        return self._manifests / digest[:2] / f"{digest}.json"

    def _write(self, path: Path, content: bytes) -> None:
        """Write a file whose name is its content's hash. If it exists, only its time is set: prune goes by it."""
        if path.exists():
            os.utime(path)
            return
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            sync_folder(path.parent.parent)
        fd, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(fd)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """Shared while files are used, exclusive while they are removed."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)


def _days(seconds: float | None) -> str:
    return f"{(seconds or 0) / 86_400:.3g} days"


def _files_json(files: Mapping[str, StoredFile]) -> dict[str, list[object]]:
    return {path: [one.sha256, one.n_bytes, one.executable] for path, one in files.items()}


def _shown(path: str) -> str:
    """The path as text that can be stored: a name that is not UTF-8 is spelled with escapes."""
    return path.encode("utf-8", "backslashreplace").decode()


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]
