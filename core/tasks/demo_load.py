"""Loads the shipped demo data: journal records, appended to the studio's journal.

``demo_data/journal.jsonl.zst`` holds one journal record per line (see ``core.records``), as the gateway and the API
wrote them while the demo ran (``demo_data/make_demo_data.py``). So loading it is replaying captured calls:
tokens, links and rewards come out of the same ingest as everything else.
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
        NotFound: the file is not there.
        InvalidInput: a line is no journal record.
    """
    import pyarrow as pa

    if not path.is_file():
        raise NotFound(
            f"{path.name} is missing", field="demo_data", hint="run from a clone, or demo_data/make_demo_data.py"
        )
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

    Every uid is fixed, so a second load finds all steps present and changes nothing.

    Returns:
        ``{n_steps, n_trajectories, n_groups, loaded_at}``: what the file holds.

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
