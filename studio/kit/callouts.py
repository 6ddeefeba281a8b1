"""Empty, loading and error states, the same on every page."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec

import streamlit as st

from core.errors import StudioError
from studio.kit.format import escape

P = ParamSpec("P")


def show_error(error: Exception) -> None:
    """A call-out with the error's message, field and hint; for an unexpected exception also its traceback."""
    if isinstance(error, StudioError):
        field = f"<code>{escape(error.field)}</code>" if error.field else ""
        hint = f'<div class="h">{escape(error.hint)}</div>' if error.hint else ""
        title = escape(error.type.replace("_", " ").capitalize())
        st.html(
            f'<div class="cs-callout bad" role="alert"><div class="t">{title} {field}</div>'
            f'<div class="m">{escape(error.message)}</div>{hint}</div>'
        )
        return
    st.html(
        '<div class="cs-callout bad" role="alert"><div class="t">This part of the page failed</div>'
        f'<div class="m">{escape(type(error).__name__)}: {escape(error)}</div>'
        '<div class="h">Capture and the other pages still work. The traceback is below.</div></div>'
    )
    with st.expander("Trace", icon=":material/bug_report:"):
        st.code("".join(traceback.format_exception(error)), language="python")


@contextmanager
def error_boundary() -> Iterator[None]:
    """Show an exception in place of its part of the page. Streamlit's rerun and stop pass through."""
    try:
        yield
    except Exception as error:
        show_error(error)


def live(run_every: float | None) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """A fragment that reruns every ``run_every`` seconds inside its own error boundary."""

    def decorate(draw: Callable[P, Any]) -> Callable[P, Any]:
        @st.fragment(run_every=run_every)
        @wraps(draw)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            with error_boundary():
                draw(*args, **kwargs)

        return guarded

    return decorate


LARGE_POOL = 100_000


def refresh_interval(n_steps: int, every_s: float) -> float:
    """Seconds between redraws of a part that queries the whole pool: five times longer for large pools."""
    return every_s if n_steps < LARGE_POOL else 5 * every_s


def empty_state(
    title: str,
    text: str,
    *,
    icon: str = "inbox",
    actions: Callable[[str], None] | None = None,
    then: tuple[str, Callable[[], None]] | None = None,
) -> None:
    """A box for a page or part without data, with what to do next.

    A command in backticks is set as code, on one line. ``actions`` draws more buttons below; its argument is a prefix
    for their keys. ``then`` is the label of a button and the callback that runs before the page is drawn again.
    """
    # Several can stand on one page.
    name = re.sub(r"\W+", "-", title.lower())
    with st.container(border=True, key=f"empty-{name}", horizontal_alignment="center", gap="small"):
        st.markdown(f":material/{icon}:", text_alignment="center")
        shown = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
        st.html(f'<div class="cs-empty"><div class="t">{escape(title)}</div><div>{shown}</div></div>')
        if then is not None:
            st.button(then[0], key=f"then-{name}", on_click=then[1])
        if actions is not None:
            actions(f"empty-{name}")
