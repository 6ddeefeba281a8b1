"""The name under which a browser labels: kept in the data folder by the browser's cookie."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path

FILE = "reviewers.json"
MAX_CHARS = 80
_lock = threading.Lock()


def name_of(data_dir: Path, browser: str) -> str | None:
    """The name that this browser chose; None: none."""
    name = _read(data_dir / FILE).get(_key(browser))
    return name if isinstance(name, str) and name else None


def remember(data_dir: Path, browser: str, name: str) -> None:
    """Store the name of a browser; an empty one removes it. The file is replaced atomically."""
    path = data_dir / FILE
    with _lock:
        names = {**_read(path), _key(browser): name.strip()[:MAX_CHARS]}
        fresh = path.with_suffix(".part")
        fresh.write_text(json.dumps({key: one for key, one in names.items() if one}, indent=1), encoding="utf-8")
        fresh.replace(path)


def _key(browser: str) -> str:
    # The cookie also leads to the browser's session keys, so only its hash is stored.
    return hashlib.sha256(browser.encode()).hexdigest()


def _read(path: Path) -> dict[str, str]:
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return names if isinstance(names, dict) else {}
