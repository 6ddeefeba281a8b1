"""Building blocks of all pages: formatting, figures, tables, call-outs, choices, filters, jobs.

For page authors::

    from studio import kit

    with kit.error_boundary():                     # StudioError -> call-out with field and hint; other -> trace
        ...                                        # main.py wraps each page in one; wrap your own fragments too
    @kit.live(2.0)                                 # st.fragment(run_every=2.0) with an error boundary inside
    def table(): ...
    kit.live(kit.refresh_interval(n_steps, 3.0))(draw)()  # for parts that query the whole pool: slower when large
    kit.empty_state("No step matches", "…what to do next…", actions=demo_actions)  # actions draws buttons below
    kit.figures([kit.Figure("Steps", kit.count(n), help="step")])   # row of numbers, help = glossary word
    kit.count(12_345)  kit.compact(1_234_567)  kit.percent(0.31)  kit.bytes_text(n)  kit.seconds(0.21)
    kit.ago(unix)  kit.number(x)
    kit.short_uid(text)                            # short uid for display; kit.uid_html for a chip inside HTML
    kit.escape_markdown(text)                      # captured text in a label, help or toast
    kit.caption_html(text)                         # captured text as a line of small type, for st.html
    kit.section("Title", "one line of help")       # heading inside a page
    kit.facts([("label", value), ...])             # definition list, two columns
    kit.plot(figure, key="…", alt="…")             # plotly with the studio's theme, no mode bar

The other modules are imported by name: ``data_tables`` (rows of the pool), ``html_tables``, ``url_choices``,
``filters``, ``selection`` and ``jobs``.

None is drawn as an em dash everywhere: unknown is never 0.
"""

from studio.kit.callouts import empty_state, error_boundary, live, refresh_interval, show_error
from studio.kit.figures import Figure, facts, figures, plot, section
from studio.kit.format import (
    DASH,
    ago,
    bytes_text,
    caption_html,
    compact,
    count,
    counted,
    escape,
    escape_markdown,
    number,
    percent,
    seconds,
    short_uid,
    uid_html,
)

__all__ = [
    "DASH",
    "Figure",
    "ago",
    "bytes_text",
    "caption_html",
    "compact",
    "count",
    "counted",
    "empty_state",
    "error_boundary",
    "escape",
    "escape_markdown",
    "facts",
    "figures",
    "live",
    "number",
    "percent",
    "plot",
    "refresh_interval",
    "seconds",
    "section",
    "short_uid",
    "show_error",
    "uid_html",
]
