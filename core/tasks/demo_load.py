"""Loads the shipped demo data: appends its journal records to the studio's journal.

``demo_data/journal.jsonl.zst`` has one journal record per line (see ``core.records``). The gateway and the API wrote
them during a run of the demo (``demo_data/make_demo_data.py``). Ingest derives tokens, links and rewards from them as
from any captured call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from core import records
from core.errors import InvalidInput, NotFound
from core.journal import Journal
from core.tasks.demo import DEMO_DATA

DEMO_JOURNAL = DEMO_DATA / "journal.jsonl.zst"


def read_demo(path: Path = DEMO_JOURNAL) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """``(payload, record)`` of every line of the demo file.

    Raises:
        NotFound: the file does not exist.
        InvalidInput: a line is not a journal record.
    """
    import pyarrow as pa

    if not path.is_file():
        raise NotFound(f"{path.name} is missing", field="demo_data", hint="run demo_data/make_demo_data.py in a clone")
    with pa.input_stream(str(path), compression="zstd") as stream:
        lines = stream.read().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            yield line, records.parse(line)
        except InvalidInput as error:
            raise InvalidInput(f"{path.name} line {number}: {error.message}", field=error.field) from error


def load_demo(
    journal: Journal, *, clock: Callable[[], float], path: Path = DEMO_JOURNAL, timeout_s: float = 60.0
) -> dict[str, Any]:
    """Append the demo's records to ``journal`` and wait until they are durable.

    All uids are fixed, so loading it again changes nothing.

    Returns:
        ``{n_steps, n_trajectories, n_groups, loaded_at}``: counts of the file.

    Raises:
        JournalError: it could not be stored.
    """
    calls, groups, trajectories = 0, set(), set()
    waits = []
    for payload, record in read_demo(path):
        waits.append(journal.append(payload))
        if record["kind"] == "call":
            calls += 1
            groups.add(record["identity"]["prompt_uid"])
            trajectories.add(record["identity"]["trajectory_uid"])
    for wait in waits:
        wait.result(timeout_s)
    return {
        "n_steps": calls,
        "n_trajectories": len(trajectories),
        "n_groups": len(groups),
        "loaded_at": clock(),
    }
