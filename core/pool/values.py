"""``pool.values``: critics' values of steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from core.errors import NotFound
from core.pool.store.changes import NO_CHANGES
from core.pool.store.database import Database, arrow, registered, rows, timestamp

_VALUES = """
SELECT v.value FROM wanted_values w
LEFT JOIN (
    SELECT step_uid, arg_max(value, (created_at, rowid)) AS value FROM step_values WHERE model = ? GROUP BY step_uid
) v ON v.step_uid = w.uid ORDER BY w.place
"""


class Values:
    """``pool.values``: critics' values of steps."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def store(self, model: str, values: pa.Table) -> int:
        """Keep a critic's values of steps: columns step_uid (string) and value (float64); returns how many.

        NotFound names a step that does not exist; nothing is stored then. A later value of the same critic counts.
        """
        table = values.select(["step_uid", "value"])
        with self._db.write(NO_CHANGES) as cursor, registered(cursor, new_values=table):
            unknown = cursor.execute(
                "SELECT step_uid FROM new_values WHERE step_uid NOT IN (SELECT step_uid FROM steps) LIMIT 1"
            ).fetchall()
            if unknown:
                raise NotFound(f"No step {unknown[0][0]!r}.", field="step_uid")
            cursor.execute(
                "INSERT INTO step_values SELECT step_uid, ?, value, ? FROM new_values",
                [model, timestamp(self._db.clock())],
            )
        return len(table)

    def of_steps(self, step_uids: Sequence[str] | pa.Array, model: str) -> pa.Array:
        """A critic's newest values of these steps, float64 [n], null where it gave none."""
        wanted = pa.table({"uid": step_uids, "place": np.arange(len(step_uids))})
        with self._db.read() as cursor, registered(cursor, wanted_values=wanted):
            return arrow(cursor, _VALUES, [model])["value"].combine_chunks()

    def models(self) -> list[dict[str, Any]]:
        """Critics with stored values: ``{model, n_steps}``."""
        with self._db.read() as cursor:
            return rows(
                cursor,
                "SELECT model, count(DISTINCT step_uid) AS n_steps FROM step_values GROUP BY model ORDER BY model",
            )
