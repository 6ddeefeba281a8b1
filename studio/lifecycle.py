"""Opens and closes the service for the app, and stores the error if it could not open.

The app serves its files while the service opens in another thread; page scripts wait for that thread.

The error is stored here and not in ``core.service``, because only the app keeps running after it; the CLI exits.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from contextlib import suppress

from core.config import Settings, is_loopback
from core.errors import InvalidInput, StudioError
from core.garbage import no_collection
from core.gateway.access.wrong_keys import WrongKeys
from core.workers.spawn import start_early

__all__ = [
    "admin_key",
    "allowed_hosts",
    "close_service",
    "count_refusal",
    "failure",
    "import_heavy",
    "is_loopback",
    "open_service",
    "pages_address",
    "read_settings",
    "wait_until_open",
    "wrong_keys",
]

log = logging.getLogger(__name__)

wrong_keys = WrongKeys()
"""Wrong admin keys entered on the pages."""
_lock = threading.Lock()
_open_ended = threading.Event()
_open_ended.set()
_failure: StudioError | None = None
_settings: Settings | None = None


def read_settings() -> None:
    """Read the hosts and the key that the pages accept, before ``open_service`` is called in another thread."""
    from pydantic import ValidationError

    global _settings
    _open_ended.clear()
    # Wrong settings are reported by ``open_service``.
    with suppress(ValidationError):
        _settings = Settings()


def wait_until_open() -> None:
    """Wait until the service is open or has failed to open."""
    _open_ended.wait()


def open_service() -> None:
    """Open the service of this process, or store the failure for the pages to show."""
    try:
        _open()
    finally:
        _open_ended.set()


def _open() -> None:
    from pydantic import ValidationError

    global _failure, _settings
    if "core.service" not in sys.modules:
        # Before the import below, so that both processes import at the same time. Wrong settings are reported there.
        with suppress(ValidationError):
            start_early(Settings().gateways)
    with no_collection():
        from core import service

    with _lock:
        if service.current() is not None:
            return
        try:
            _settings = Settings()
            service.open_current(_settings, pages_address=pages_address()).prepare_engines()
        except StudioError as error:
            _failure = error
        except ValidationError as error:
            first = error.errors()[0]
            _failure = InvalidInput(
                f"Settings can't be used: {first['msg']}",
                field=".".join(str(part) for part in first["loc"]),
                hint="Correct it in the environment (CLAW_STUDIO_*) or in studio.toml, then try again.",
            )
        except Exception as error:
            log.exception("the service could not open")
            _failure = StudioError(
                f"The service could not open: {type(error).__name__}: {error}",
                hint="See the log of `streamlit run` for where it happened, then start the studio again.",
            )
        else:
            _failure = None


def close_service() -> None:
    """Close the service, if it is open."""
    from core import service

    with _lock:
        service.close_current()


def failure() -> StudioError | None:
    """The error with which the service failed to open, or None."""
    return _failure


def pages_address() -> str:
    """The address that the pages listen on; Streamlit's default is every interface."""
    from streamlit import config

    return config.get_option("server.address") or "::"


def allowed_hosts() -> tuple[str, ...]:
    """Additional host names that requests may use."""
    return _settings.allowed_hosts if _settings is not None else ()


def admin_key() -> str | None:
    """The admin key that visitors from the network must enter, or None."""
    return _settings.api_key if _settings is not None else None


def count_refusal(reason: str) -> None:
    """Count a refused request in the metrics."""
    from core import service

    current = service.current()
    if current is not None:
        current.stats.refused(reason)


def import_heavy() -> None:
    """Import what most pages need, so that a visitor who comes later does not wait for it."""
    for name in ("pandas", "plotly.graph_objects", "pyarrow", "studio.charts.theme"):
        importlib.import_module(name)
