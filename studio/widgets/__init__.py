"""Small reusable parts of pages.

For page authors::

    from studio import widgets as w

    w.page_header("inspect")                       # title, purpose, live status strip; first line of every page
    w.empty_state("No step matches", "…what to do next…", demo=True)   # demo=True adds the two demo buttons
    with w.error_boundary():                       # StudioError -> call-out with field and hint; other -> trace
        ...                                        # main.py wraps each page in one; wrap your own fragments too
    @w.live(2.0)                                   # st.fragment(run_every=2.0) with an error boundary inside
    def table(): ...
    w.live(w.pace(n_steps, 3.0))(draw)()           # for parts that ask the whole pool: slower when it is large
    w.figures([w.Figure("Steps", w.count(n), help="step")])            # row of numbers, help = glossary word
    w.count(12_345) w.compact(1_234_567) w.percent(0.31) w.bytes_text(n) w.seconds(0.21) w.ago(unix) w.number(x)
    w.uid(text)                                    # short uid for display; w.uid_html for a chip inside HTML
    w.verbatim(text)                               # captured text in a label, help or toast; w.quiet(text) for st.html
    w.section("Title", "one line of help")         # heading inside a page
    w.facts([("label", value), ...])               # definition list, two columns
    w.plot(figure, key="…", alt="…")               # plotly with the studio's theme, no mode bar

None is drawn as an em dash everywhere: unknown is never 0.
"""

from studio.widgets.callouts import demo_actions, empty_state, error_boundary, live, pace, show_error
from studio.widgets.figures import Figure, facts, figures, plot, section
from studio.widgets.format import (
    DASH,
    ago,
    bytes_text,
    compact,
    count,
    escape,
    number,
    percent,
    quiet,
    seconds,
    uid,
    uid_html,
    verbatim,
)
from studio.widgets.header import page_header

__all__ = [
    "DASH",
    "Figure",
    "ago",
    "bytes_text",
    "compact",
    "count",
    "demo_actions",
    "empty_state",
    "error_boundary",
    "escape",
    "facts",
    "figures",
    "live",
    "number",
    "pace",
    "page_header",
    "percent",
    "plot",
    "quiet",
    "seconds",
    "section",
    "show_error",
    "uid",
    "uid_html",
    "verbatim",
]
