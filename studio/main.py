"""Runs the current page inside the frame: navigation, style sheet, pool summary, error boundary."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from studio import lifecycle

ASSETS = Path(__file__).parent / "assets"


def head() -> None:
    """Draw what needs no service, so that the browser loads its parts while the service opens."""
    st.set_page_config(page_title="Claw Studio", page_icon=str(ASSETS / "icon.svg"), layout="wide")
    st.html(ASSETS / "studio.css")
    # The name in the logo follows the color-scheme of the sidebar around it, and so the theme.
    st.logo(ASSETS / "logo.svg", size="large", icon_image=ASSETS / "icon.svg")


head()
# Before the imports below, which the thread that opens the service makes too.
lifecycle.wait_until_open()

from studio import components, state  # noqa: E402
from studio.frame.sidebar import pool_summary  # noqa: E402
from studio.kit import error_boundary, short_uid  # noqa: E402
from studio.login import admitted  # noqa: E402
from studio.nav import DEFAULT_PAGE, PAGES  # noqa: E402
from studio.reruns import tell_query  # noqa: E402

# URL parameters that name what a page shows.
SUBJECTS = ("trajectory", "step", "group", "batch", "version")


def tab_title(page: str) -> str:
    """The browser tab's title: what the page shows, the page, the program."""
    subject = next((text for name in SUBJECTS if (text := state.query(name))), None)
    return " · ".join([*([short_uid(subject, 28)] if subject else []), page, "Claw Studio"])


def frame() -> None:
    """Draw the frame and run the current page inside its error boundary."""
    tell_query()
    sections: dict[str, list[st.Page]] = {}
    for info in PAGES.values():
        page = st.Page(info.path, title=info.title, icon=info.icon, default=info.key == DEFAULT_PAGE)
        sections.setdefault(info.section, []).append(page)
    current = st.navigation(sections, expanded=True)
    st.set_page_config(page_title=tab_title(current.title))
    if not admitted():
        return
    with st.sidebar:
        components.sidebar_navigation()
        components.scheme_watch()
        pool_summary()
    with error_boundary():
        current.run()


frame()
