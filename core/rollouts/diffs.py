"""Text of what an agent changed: a unified diff of each changed file."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from core.errors import StudioError
from core.rollouts.workspaces import Change, StoredFile, WorkspaceStore

MAX_BYTES = 256 << 10
"""Largest file that is compared as text."""
MAX_LINES = 2000


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One changed file.

    Attributes:
        path, kind: as in ``Change``.
        n_bytes_before, n_bytes_after: sizes; None where the file does not exist.
        diff: unified diff, at most ``MAX_LINES`` lines; None for what is no text, too large, or no longer stored.
        note: why there is no diff, or that it was cut; None otherwise.
    """

    path: str
    kind: str
    n_bytes_before: int | None
    n_bytes_after: int | None
    diff: str | None
    note: str | None

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


def diffs(store: WorkspaceStore, digest: str) -> list[FileDiff]:
    """The changed files of a workspace, in order of path. NotFound if the workspace is not stored."""
    return [diff_of(store, change) for change in store.changes(digest)]


def diff_of(store: WorkspaceStore, change: Change) -> FileDiff:
    """The diff of one file."""
    sizes = [None if one is None else one.n_bytes for one in (change.before, change.after)]
    diff: str | None = None
    note: str | None = None
    if any(size is not None and size > MAX_BYTES for size in sizes):
        note = f"larger than {MAX_BYTES} bytes"
    else:
        try:
            before, after = _lines(store, change.before), _lines(store, change.after)
        except UnicodeDecodeError:
            note = "no text"
        except StudioError as error:
            note = error.message
        else:
            lines = list(difflib.unified_diff(before, after, "before", "after", lineterm=""))[2:]
            if len(lines) > MAX_LINES:
                lines, note = lines[:MAX_LINES], f"the first {MAX_LINES} lines of the diff"
            diff = "\n".join(lines)
            if not lines:
                note = "only its permissions, or the end of its last line"
    return FileDiff(change.path, change.kind, sizes[0], sizes[1], diff, note)


def _lines(store: WorkspaceStore, file: StoredFile | None) -> list[str]:
    if file is None:
        return []
    content = store.read(file)
    if b"\0" in content:
        raise UnicodeDecodeError("utf-8", content[:1], 0, 1, "a NUL byte")
    return content.decode("utf-8").splitlines()
