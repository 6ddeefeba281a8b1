"""The rows that a retention run deleted, kept as files beside the pool until the trash is emptied.

A run's folder holds an Arrow file per table, the journal segments that went with it, and a note, which is written last:
a folder without one is what an interrupted run left.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from core.durable import sync_folder
from core.errors import NoRoom, NotFound, PoolError, is_full
from core.pool.store.database import Cursor, registered
from core.pool.upkeep.deletion import OF_TRAJECTORIES

RUN_FILE = "run.json"
ROWS = "rows"
SEGMENTS = "journal"
Uptime = tuple[str, float]
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_OWN_BOOT = f"process-{uuid.uuid4().hex}"
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_DERIVED = ("step_state", "trajectory_state")
_UNDER_UIDS = {
    "step_values": "step_uid IN (SELECT uid FROM deleted WHERE run_uid = ? AND kind = 'step')",
    "feedback": "feedback_uid IN (SELECT uid FROM deleted WHERE run_uid = ? AND kind = 'feedback')",
}
_MESSAGES = """
SELECT m.* FROM messages m WHERE message_id IN (
    SELECT unnest(new_message_ids) FROM step_messages SEMI JOIN gone USING (trajectory_id)
    UNION SELECT response_message_id FROM step_messages SEMI JOIN gone USING (trajectory_id)
    UNION SELECT tools_id FROM step_messages SEMI JOIN gone USING (trajectory_id)
) ORDER BY message_id
"""
_MEDIA = """
SELECT * FROM media WHERE content_hash IN (
    SELECT unnest(regexp_extract_all(body, '"claw-media:([0-9a-f]{32})"', 1))::UUID FROM trashed_messages
    WHERE contains(body, '"claw-media:')
)
"""


def uptime() -> Uptime:
    """Which start of the machine it runs since, and for how many seconds, sleep included.

    Setting the clock doesn't change it. If the system doesn't identify its start, that of this process is used.
    """
    try:
        boot = _BOOT.read_text().strip()
    except OSError:
        boot = _OWN_BOOT
    return boot, time.clock_gettime(_CLOCK)


def write_trashed_run(cursor: Cursor, folder: Path, run_uid: str, note: Mapping[str, Any]) -> None:
    """Write the rows of the trajectories in ``gone``, synced, before they are deleted. PoolError when that fails."""
    try:
        (folder / ROWS).mkdir(mode=0o700, parents=True)
        for (name,) in cursor.execute(OF_TRAJECTORIES).fetchall():
            if name not in _DERIVED:
                _keep(cursor, folder, name, f"SELECT * FROM {name} SEMI JOIN gone USING (trajectory_id) ORDER BY rowid")
        for name, condition in _UNDER_UIDS.items():
            _keep(cursor, folder, name, f"SELECT * FROM {name} WHERE {condition} ORDER BY rowid", [run_uid])
        messages = _keep(cursor, folder, "messages", _MESSAGES)
        with registered(cursor, trashed_messages=messages):
            _keep(cursor, folder, "media", _MEDIA)
        _write(folder / RUN_FILE, orjson.dumps(dict(note)))
        sync_folder(folder / ROWS)
        sync_folder(folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        refused = NoRoom if is_full(error) else PoolError
        raise refused(
            f"The trash can't be written: {error}", field="data_dir", hint="Free some room: nothing was deleted."
        ) from error


def reinsert_trashed_run(cursor: Cursor, folder: Path) -> list[int]:
    """Put a run's rows back where they were; returns the ids of their trajectories.

    A step whose uid came again meanwhile stays as it is now. NotFound when the trash does not hold the run.
    """
    if not (folder / RUN_FILE).is_file():
        raise NotFound(f"The trash holds no run {folder.name!r}.", field="run_uid", hint="Its time may be over.")
    try:
        kept = {path.stem: _read(path) for path in sorted((folder / ROWS).iterdir())}
    except (OSError, pa.ArrowInvalid) as error:
        raise PoolError(f"The trash of run {folder.name!r} can't be read: {error}", field="run_uid") from error
    named = {f"kept_{name}": table for name, table in kept.items()}
    with registered(cursor, **named):
        _map_ids(cursor)
        cursor.execute("INSERT INTO trajectories SELECT * FROM kept_trajectories"
                       " WHERE trajectory_id IN (SELECT old FROM owner_ids WHERE missing)")  # fmt: skip
        cursor.execute("INSERT INTO messages SELECT * FROM kept_messages"
                       " WHERE message_id IN (SELECT old FROM message_ids WHERE missing)")  # fmt: skip
        cursor.execute("INSERT INTO media SELECT * FROM kept_media"
                       " WHERE content_hash::UUID NOT IN (SELECT content_hash FROM media)")  # fmt: skip
        for name, table in kept.items():
            if name not in ("trajectories", "messages", "media"):
                _insert(cursor, name, table.column_names)
        ids = cursor.execute("SELECT now FROM owner_ids").fetchall()
    return [number for (number,) in ids]


def _map_ids(cursor: Cursor) -> None:
    """``owner_ids`` and ``message_ids``: the number of each row then and now; ``again``: steps that came again."""
    cursor.execute(
        "CREATE OR REPLACE TEMP TABLE owner_ids AS SELECT k.trajectory_id AS old,"
        " coalesce(t.trajectory_id, k.trajectory_id) AS now, t.trajectory_id IS NULL AS missing"
        " FROM kept_trajectories k"
        " LEFT JOIN trajectories t USING (trajectory_uid)"
    )
    cursor.execute(
        "CREATE OR REPLACE TEMP TABLE message_ids AS SELECT k.message_id AS old,"
        " coalesce(m.message_id, k.message_id) AS now, m.message_id IS NULL AS missing"
        " FROM kept_messages k"
        " LEFT JOIN messages m ON m.content_hash = k.content_hash::UUID"
    )
    cursor.execute(
        "CREATE OR REPLACE TEMP TABLE again AS SELECT k.step_id FROM kept_steps k JOIN steps s USING (step_uid)"
    )


def _insert(cursor: Cursor, name: str, columns: list[str]) -> None:
    replaced, conditions = [], ["TRUE"]
    if "trajectory_id" in columns:
        replaced.append("(SELECT now FROM owner_ids WHERE old = k.trajectory_id) AS trajectory_id")
    if name == "step_messages":
        replaced += [
            "list_transform(new_message_ids, lambda one: coalesce(ids.by_old[one], one)) AS new_message_ids",
            "coalesce(ids.by_old[response_message_id], response_message_id) AS response_message_id",
            "coalesce(ids.by_old[tools_id], tools_id) AS tools_id",
        ]
    if "step_id" in columns:
        conditions.append("(step_id IS NULL OR step_id NOT IN (SELECT step_id FROM again))")
    if name == "feedback_state":
        conditions.append("feedback_uid NOT IN (SELECT feedback_uid FROM feedback_state)")
    if name == "feedback":
        conditions.append("feedback_uid NOT IN (SELECT feedback_uid FROM feedback)")
    source = f"kept_{name} k"
    if name == "step_messages":
        source += ", (SELECT map_from_entries(list((old, now))) AS by_old FROM message_ids) ids"
    chosen = f"k.* REPLACE ({', '.join(replaced)})" if replaced else "k.*"
    cursor.execute(f"INSERT INTO {name} BY NAME SELECT {chosen} FROM {source} WHERE {' AND '.join(conditions)}")


def read_note(folder: Path) -> dict[str, Any] | None:
    """The note in a run's folder; None if the run was interrupted."""
    try:
        note = orjson.loads((folder / RUN_FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return note if isinstance(note, dict) else None


def _keep(cursor: Cursor, folder: Path, name: str, sql: str, bound: list[Any] | None = None) -> pa.Table:
    table = cursor.sql(sql, params=bound or []).to_arrow_table()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    _write(folder / ROWS / f"{name}.arrow", sink.getvalue())
    return table


def _read(path: Path) -> pa.Table:
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        return reader.read_all()


def _write(path: Path, body: Any) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
