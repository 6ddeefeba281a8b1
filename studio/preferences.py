"""Display preferences by author (table columns, for instance), in one small file beside the pool.

They are not in the URL, since a link is for other people, and not in the pool, since they are not data.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from studio import state

FILE = "preferences.json"
_lock = threading.Lock()


def read(name: str, default: Any = None) -> Any:
    """This author's setting, or the default. An unreadable file counts as empty."""
    return _read(_path()).get(state.author(), {}).get(name, default)


def write(name: str, value: Any) -> None:
    """Store a setting; None removes it. The file is replaced atomically."""
    path = _path()
    with _lock:
        kept = _read(path)
        preferences = {**kept.get(state.author(), {}), name: value}
        kept[state.author()] = {key: one for key, one in preferences.items() if one is not None}
        fresh = path.with_suffix(".part")
        fresh.write_text(json.dumps(kept, indent=1, sort_keys=True), encoding="utf-8")
        fresh.replace(path)


def _path() -> Path:
    return state.service().settings.data_dir / FILE


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}
