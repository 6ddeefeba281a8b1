"""Opening and closing the service for the app, and remembering why it could not open.

The failure is kept outside ``core.service`` because only the app outlives it: the CLI ends instead.
"""

from __future__ import annotations

import importlib
import threading

from core.config import Settings
from core.errors import InvalidInput, StudioError

_lock = threading.Lock()
_failure: StudioError | None = None


def open_service() -> None:
    """Open the service of this process, or remember the failure that pages show."""
    from pydantic import ValidationError

    from core import service

    global _failure
    with _lock:
        if service.current() is not None:
            return
        try:
            service.open_current(Settings()).prepare_engines()
        except StudioError as error:
            _failure = error
        except ValidationError as error:
            first = error.errors()[0]
            _failure = InvalidInput(
                f"Settings can't be used: {first['msg']}",
                field=".".join(str(part) for part in first["loc"]),
                hint="Correct it in the environment (CLAW_STUDIO_*) or in studio.toml, then try again.",
            )
        else:
            _failure = None


def close_service() -> None:
    """Close the service in order; nothing to do when it never opened."""
    from core import service

    with _lock:
        service.close_current()


def failure() -> StudioError | None:
    """Why the service could not open, or None."""
    return _failure


def import_heavy() -> None:
    """Import what the first page needs, so that no visitor waits for it."""
    for name in ("pandas", "plotly.graph_objects", "pyarrow", "studio.charts.theme"):
        importlib.import_module(name)
