"""The HTML document of every page: Streamlit's own, and a script that says where its server is.

Without it the browser first looks for the server below the page's own path, which is two failed requests per visit.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import streamlit

from studio.nav import PAGES

PATHS = frozenset(f"/{info.url_path}" for info in PAGES.values())
"""Paths of the pages, as this server sees them."""

_HEAD = b"<head>"


@cache
def document() -> bytes:
    """The document, UTF-8. The script cuts off only the page: a proxy may serve the studio below another path."""
    pages = "|".join(sorted(info.url_path for info in PAGES.values() if info.url_path))
    script = (
        "<script>window.__streamlit={BACKEND_BASE_URL:location.origin+"
        f'location.pathname.replace(/(^|\\/)({pages})\\/?$/,"/")}}</script>'
    )
    plain = (Path(streamlit.__file__).parent / "static" / "index.html").read_bytes()
    assert plain.count(_HEAD) == 1, "Streamlit's document has another form"
    return plain.replace(_HEAD, _HEAD + script.encode())
