"""SQL, dataset versions and upkeep on the command line, without a running service."""

from __future__ import annotations

import json
from pathlib import Path

from tests.test_cli import cli, step


def test_sql_freeze_diff_and_export(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    lines = tmp_path / "steps.jsonl"
    lines.write_text("".join(json.dumps(step(i)) + "\n" for i in range(2)))
    assert cli("import", str(lines), "--data", data).returncode == 0

    asked = cli("sql", "SELECT step_index, reward FROM step_state ORDER BY step_index", "--data", data, "--json")
    assert [json.loads(line) for line in asked.stdout.splitlines()] == [
        {"step_index": 0, "reward": 0.0},
        {"step_index": 1, "reward": 1.0},
    ]
    refused = cli("sql", "DELETE FROM steps", "--data", data)
    assert refused.returncode == 2
    assert "Only SELECT" in refused.stderr

    told = []
    for name, where in (("v1", ""), ("v2", "step_index = 1")):
        done = cli("freeze", name, "--data", data, "--where", where, "--recipe", '{"algorithm": "sft"}', "--note", "x")
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
    assert [one["n_steps"] for one in told] == [2, 1]
    listed = [json.loads(line) for line in cli("versions", "--data", data).stdout.splitlines()]
    assert [one["name"] for one in listed] == ["v2", "v1"]
    assert json.loads(cli("diff", "v1", "v2", "--data", data).stdout)["counts"]["removed"] == 1
    written = [
        json.loads(cli("export-version", "v1", "trl_sft", "--data", data, "--out", str(tmp_path / out)).stdout)
        for out in ("a", "b")
    ]
    assert written[0]["sha256"] == written[1]["sha256"]
    assert written[0]["n_rows"] == 2
