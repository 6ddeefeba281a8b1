"""Keys that logs hold of the calls that they logged are never written, whichever field they stand in."""

from __future__ import annotations

import json
from pathlib import Path

from core.client import StudioClient
from core.imports import FORMATS, run
from core.journal import read_records
from tests.conftest import ServeProcess

from .keyed_logs import KEYS, logs_with_keys


def test_keys_that_a_log_holds_stay_outside(tmp_path: Path) -> None:
    files = logs_with_keys(tmp_path)
    data = tmp_path / "data"
    service = ServeProcess(data, "http://127.0.0.1:9/v1")
    try:
        with StudioClient(service.base_url) as client:
            report = run(files, client)
            assert (report.n_problems, set(report.formats.values())) == (0, set(FORMATS))
            steps = [client.step(row["step_uid"]) for row in client.steps()]
            assert run(files, client).n_steps == 0
    finally:
        assert service.stop() == 0
    shown = json.dumps(steps)
    journal = b"".join(record.payload for record in read_records(data / "journal", {})).decode()
    files_of = "".join(path.read_bytes().decode("latin-1") for path in data.rglob("*") if path.is_file())
    for place, text in {"answers": shown, "journal": journal, "files": files_of}.items():
        for where, key in KEYS.items():
            assert key not in text, f"the key of {where} stands in {place}"
    assert len(steps) == report.n_steps
    for step in steps:
        spoken = json.dumps([step["messages"], step["metadata"]])
        assert "[secret]" in spoken, step["trajectory_uid"]
        # What is no secret in a header is none in the conversation.
        assert "KEY=[secret] COOKIE=[secret] as application/json" in spoken or not step["messages"]
