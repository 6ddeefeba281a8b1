"""Custom components: drawings that Streamlit has no element for.

Plain HTML, CSS and JavaScript through ``st.components.v2``: no iframe, colours from the theme's variables;
only the SQL editor's CodeMirror is bundled. Each function here takes data and returns what the user clicked, or None::

    token_view(uid=…, prompt_ids=…, response_ids=…, logprobs=…, vocab={id: (text, special)}, …)
    messages_view(uid=…, entries=studio.widgets.steps.messages.delta(…))
    timeline(steps=…, selected=…) -> step_uid | None
    facet_list(facets=…) -> {"column", "value"} | None
    plain_text(text=…)
    training_rows(rows=…, most=…)
    transcript_view(uid=…, turns=studio.widgets.steps.transcript.transcript(…))
    theme_choice(page=…, pages=…)              sidebar_navigation()      scheme_watch()
    sql_editor(text=…, tables=…, ran=…)             schema_list(tables=…, history=…)
    siblings(rows=…) -> {"what", "uid"} | None
    tree_canvas(…) -> node index | None        mask_canvas(…)        packed_rows(…) -> row index | None
"""

from studio.components.base import mount_key
from studio.components.sql import schema_list, sql_editor
from studio.components.views import (
    facet_list,
    mask_canvas,
    messages_view,
    packed_rows,
    plain_text,
    scheme_watch,
    siblings,
    sidebar_navigation,
    theme_choice,
    timeline,
    token_view,
    training_rows,
    transcript_view,
    tree_canvas,
)

__all__ = [
    "facet_list",
    "mask_canvas",
    "messages_view",
    "mount_key",
    "packed_rows",
    "plain_text",
    "schema_list",
    "scheme_watch",
    "siblings",
    "sidebar_navigation",
    "sql_editor",
    "theme_choice",
    "timeline",
    "token_view",
    "training_rows",
    "transcript_view",
    "tree_canvas",
]
