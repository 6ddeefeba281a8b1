"""The run (experiment) that a step or a trajectory belongs to, as its producer named it in metadata."""

from __future__ import annotations

from core.types import MAX_RUN_CHARS, RUN_KEY, RUN_NAME

KEYS = ((RUN_NAME, ("VARCHAR", "UBIGINT")), (RUN_KEY, ("VARCHAR",)))
"""Key of the metadata -> types of its value that name a run, the first that applies."""


def run_sql(metadata: str) -> str:
    """SQL of the run's name in a column of metadata (JSON text): at most ``MAX_RUN_CHARS`` characters; NULL: none."""
    names = ", ".join(
        f"CASE WHEN json_type({metadata}, '$.{key}') IN ({', '.join(repr(one) for one in types)})"
        f" THEN json_extract_string({metadata}, '$.{key}') END"
        for key, types in KEYS
    )
    return f"nullif(left(coalesce({names}), {MAX_RUN_CHARS}), '')"
