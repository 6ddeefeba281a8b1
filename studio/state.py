"""State that pages share: the running service, selections in the URL, links between pages.

For page authors::

    svc = state.service()                          # core.service.Service; StudioError when it is not open
    uid = state.query("step")                      # one URL parameter, or None
    state.set_query(step=uid, trajectory=None)     # None removes; no rerun of its own
    view = state.view_from_query()                 # core.types.View from ?<filter>=…&where=…
    state.set_view(view)                           # writes it back (removes filters that are gone)
    state.link("inspect", step=uid)                # "/inspect?step=…" for LinkColumn and HTML anchors
    state.goto("inspect", step=uid)                # in-app switch; stops the script
    state.author()                                 # author of annotations from this browser

Selections are kept in the URL, never only in session state, so that every view can be sent as a link.
"""

from __future__ import annotations

import getpass
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import streamlit as st

from core.errors import StudioError
from core.types import View
from studio import lifecycle, reviewers
from studio.access import BROWSER_COOKIE
from studio.nav import PAGES

if TYPE_CHECKING:
    from core.service import Service


class ServiceAbsent(StudioError):
    """The service is not open in this process."""

    type = "service_absent"
    http_status = 503


def service() -> Service:
    """The service of this process. Raises the error with which it failed to open, or ServiceAbsent."""
    from core import service as core_service

    running = core_service.current()
    if running is not None:
        return running
    if (failure := lifecycle.failure()) is not None:
        raise failure
    raise ServiceAbsent(
        "The service is not open in this process.",
        hint="Start the app with `streamlit run studio` (or `make studio`), which opens it.",
    )


def query(name: str, default: str | None = None) -> str | None:
    """One URL parameter; an empty one counts as absent."""
    return st.query_params.get(name) or default


def set_query(**params: Any) -> None:
    """Set URL parameters; None removes one. Writes only what differs, to avoid rerun loops."""
    for name, value in params.items():
        if value is None:
            if name in st.query_params:
                del st.query_params[name]
            continue
        wanted = [str(part) for part in value] if isinstance(value, list | tuple) else [str(value)]
        if st.query_params.get_all(name) != wanted:
            st.query_params[name] = wanted


def link(page: str, **params: Any) -> str:
    """Relative address of a page with parameters, for LinkColumn and anchors. None values are left out."""
    kept = {name: value for name, value in params.items() if value is not None}
    return f"/{PAGES[page].url_path}" + (f"?{urlencode(kept, doseq=True)}" if kept else "")


def goto(page: str, **params: Any) -> None:
    """Switch to a page inside the app with these URL parameters; does not return."""
    kept = {name: value for name, value in params.items() if value is not None}
    st.switch_page(str(PAGES[page].path), query_params={k: _as_text(v) for k, v in kept.items()})


def _as_text(value: Any) -> str | list[str]:
    return [str(part) for part in value] if isinstance(value, list | tuple) else str(value)


TEXT_KINDS = frozenset({"one_of", "list", "text", "state"})
"""Kinds of filters whose values are texts, so that a uid of digits stays a text in the URL."""


def encode_filter(value: Any, kind: str) -> list[str]:
    """A filter's value as the values of one URL parameter: texts as they are, lists of texts repeated, the rest JSON.

    >>> encode_filter(["train", "val"], "one_of"), encode_filter("123", "one_of"), encode_filter([0, 1], "range")
    (['train', 'val'], ['123'], ['[0,1]'])
    """
    if kind not in TEXT_KINDS:
        return [value if isinstance(value, str) and not _is_json(value) else _json(value)]
    parts = list(value) if isinstance(value, list | tuple) and value else [value]
    return [part if isinstance(part, str) and not _special(part) else _json(part) for part in parts]


def decode_filter(values: Sequence[str], kind: str) -> Any:
    """The inverse of :func:`encode_filter`; a list of one text comes back as that text, which filters alike."""
    if kind not in TEXT_KINDS:
        return json.loads(values[0]) if _is_json(values[0]) else values[0]
    parts = [json.loads(value) if _special(value) and _is_json(value) else value for value in values]
    return parts if len(parts) > 1 else parts[0]


def _special(text: str) -> bool:
    """Whether a text must be quoted as JSON: null, objects and quoted texts are decoded as JSON."""
    return text in {"", "null"} or text[0] in '"[{'


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def view_from_query(params: Mapping[str, Any] | None = None) -> View:
    """The view in the URL: parameters named like a pool filter, and ``where``."""
    from core.pool.query.views import FILTERS

    source = st.query_params if params is None else params
    filters: dict[str, Any] = {}
    for name, known in FILTERS.items():
        if name not in source:
            continue
        values = st.query_params.get_all(name) if params is None else source[name]
        values = [values] if isinstance(values, str) else list(values)
        if values and values != [""]:
            filters[name] = decode_filter(values, known.kind)
    where = source.get("where", "")
    return View(filters=filters, where=where if isinstance(where, str) else where[0])


def view_to_query(view: View) -> dict[str, list[str]]:
    """URL parameters that :func:`view_from_query` reads back as the same view."""
    from core.pool.query.views import FILTERS

    params = {
        name: encode_filter(value, FILTERS[name].kind) for name, value in view.filters.items() if value is not None
    }
    if view.where:
        params["where"] = [view.where]
    return params


def set_view(view: View) -> None:
    """Write this view to the URL and remove all other filters."""
    from core.pool.query.views import FILTERS

    params = view_to_query(view)
    set_query(**{name: params.get(name) for name in (*FILTERS, "where")})


def author() -> str:
    """The author of annotations from this browser: the name chosen on Settings, else the user of this machine."""
    if "author" not in st.session_state:
        browser = st.context.cookies.get(BROWSER_COOKIE)
        known = reviewers.name_of(service().settings.data_dir, browser) if isinstance(browser, str) else None
        st.session_state["author"] = known or getpass.getuser()
    name: str = st.session_state["author"]
    return name


def set_author(name: str) -> None:
    """Choose the author of annotations from this browser, for this visit and later ones."""
    st.session_state["author"] = name
    browser = st.context.cookies.get(BROWSER_COOKIE)
    if isinstance(browser, str):
        reviewers.remember(service().settings.data_dir, browser, name)
