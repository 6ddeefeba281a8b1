"""The packs of a data folder: every version that was used or imported, stored by its content.

``packs/VERSION.jsonl`` has the tasks, ``packs/VERSION.json`` the pack's name, its format and when it came. Versions are
never changed, so a run and its verification find the same tasks years later.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import orjson

from core.durable import sync_folder
from core.errors import InvalidInput, NotFound
from core.packs.model import Pack
from core.packs.registry import read_pack, write_pack

MOST_LOADED = 4
_VERSION = re.compile(r"[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class PackEntry:
    """One stored pack version.

    Attributes:
        version: first 12 digits of the content's hash.
        name, format: of the pack.
        n_tasks: number of its tasks.
        added_at: seconds since the epoch.
    """

    version: str
    name: str
    format: str
    n_tasks: int
    added_at: float


class PackLibrary:
    """The packs below ``folder``. Thread-safe; the packs used last are kept in memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded: OrderedDict[str, Pack] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, pack: Pack, *, now: float) -> PackEntry:
        """Store a pack version, if it is not stored yet; it is on disk when this returns.

        Args:
            now: seconds since the epoch.

        Raises:
            InvalidInput: it can't be written.
        """
        with self._lock:
            self._remember(pack)
            with contextlib.suppress(NotFound):
                return self._entry(pack.version)
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            tasks = self.folder / f"{pack.version}.jsonl"
            temporary = self.folder / f".new-{os.getpid()}-{pack.version}.jsonl"
            temporary.unlink(missing_ok=True)
            write_pack(pack, temporary, "hub")
            _sync(temporary)
            temporary.replace(tasks)
            entry = PackEntry(pack.version, pack.name, pack.format, len(pack.tasks), now)
            about = temporary.with_suffix(".json")
            about.write_bytes(orjson.dumps(entry))
            _sync(about)
            about.replace(self.folder / f"{pack.version}.json")
            sync_folder(self.folder)
            return entry

    def get(self, version: str) -> Pack:
        """A stored pack.

        Raises:
            NotFound: there is no such version.
            InvalidInput: its file is damaged.
        """
        with self._lock:
            pack = self._loaded.get(version)
            if pack is None:
                entry = self._entry(version)
                read = read_pack(self.folder / f"{version}.jsonl")
                pack = Pack(entry.name, read.tasks, entry.format)
                if pack.version != version:
                    raise InvalidInput(
                        f"the stored pack {version} is damaged",
                        field="pack",
                        hint="read the pack from its folder again",
                    )
            self._remember(pack)
            return pack

    def entries(self) -> list[PackEntry]:
        """All stored versions, newest first."""
        entries = []
        for path in self.folder.glob("*.json"):
            with contextlib.suppress(NotFound, InvalidInput):
                entries.append(self._entry(path.stem))
        return sorted(entries, key=lambda one: (one.added_at, one.version), reverse=True)

    def find(self, name: str) -> PackEntry:
        """The newest version of the pack ``name``, or the version ``name``.

        Raises:
            NotFound: there is none.
        """
        for entry in self.entries():
            if name in (entry.version, entry.name):
                return entry
        raise NotFound(f"no pack {name!r} is stored", field="pack", hint="name a folder, or a pack that was imported")

    def _remember(self, pack: Pack) -> None:
        self._loaded[pack.version] = pack
        self._loaded.move_to_end(pack.version)
        while len(self._loaded) > MOST_LOADED:
            self._loaded.popitem(last=False)

    def _entry(self, version: str) -> PackEntry:
        path = self.folder / f"{version}.json"
        if not _VERSION.fullmatch(version) or not path.is_file():
            raise NotFound(f"no pack version {version!r} is stored", field="pack")
        try:
            return PackEntry(**orjson.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise InvalidInput(f"{path.name} is damaged: {error}", field="pack") from error


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
