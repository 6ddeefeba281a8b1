"""What a person set for themselves (columns, for instance): one small file beside the pool, by author.

Not in the URL: a link shows a colleague the data and not one's habits. Not in the pool: it is not data.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from studio import state

FILE = "preferences.json"
_lock = threading.Lock()


def get(name: str, default: Any = None) -> Any:
    """This author's setting, or the default. An unreadable file holds no settings."""
    return _read(_path()).get(state.author(), {}).get(name, default)


def put(name: str, value: Any) -> None:
    """Keep a setting; None forgets it. The file is replaced whole, so a crash leaves the old one."""
    path = _path()
    with _lock:
        kept = _read(path)
        own = {**kept.get(state.author(), {}), name: value}
        kept[state.author()] = {key: one for key, one in own.items() if one is not None}
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
