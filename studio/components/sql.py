"""The components of the SQL page: the editor, and the tables and earlier queries beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from studio.bundles import codemirror_address
from studio.components.base import renderer


def sql_editor(
    *,
    text: str,
    limit: int,
    limits: Sequence[int],
    note: str,
    tables: Sequence[Mapping[str, Any]],
    functions: Sequence[str],
    key: str,
    ran: Callable[[], None],
) -> None:
    """An editor with a Run button and a row limit.

    ``ran`` is called before the page is drawn; ``{"text", "limit"}`` is then in ``st.session_state[key]["run"]``.

    Args:
        text: the query. What is typed stays until another one is given here.
        limit, limits: the row limit, and the ones to choose from.
        note: text beside the button.
        tables: as ``pool.sql.schema`` gives them, for completion.
        functions: names of functions, for completion.
    """
    renderer("editor")(
        data={
            "text": text,
            "limit": limit,
            "limits": list(limits),
            "note": note,
            "tables": list(tables),
            "functions": list(functions),
            "module": codemirror_address(),
        },
        key=key,
        on_run_change=ran,
    )


def schema_list(
    *, tables: Sequence[Mapping[str, Any]], opened: Sequence[str], history: Sequence[Mapping[str, Any]], height: int
) -> None:
    """Tables with their columns and meanings, and earlier queries; a click puts one into the editor of the page.

    Args:
        tables: as ``pool.sql.schema`` gives them, in the order in which they are listed.
        opened: names of the tables whose columns are listed at first.
        history: ``{text, note, at, failed}``, newest first.
        height: of the list, pixels.
    """
    renderer("schema")(
        data={"tables": list(tables), "open": list(opened), "history": list(history), "height": height},
        key="sql-schema",
    )
