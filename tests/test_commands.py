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

    completed = cli("sql", "SELECT step_index, reward FROM step_state ORDER BY step_index", "--data", data, "--json")
    assert [json.loads(line) for line in completed.stdout.splitlines()] == [
        {"step_index": 0, "reward": 0.0},
        {"step_index": 1, "reward": 1.0},
    ]
    refused = cli("sql", "DELETE FROM steps", "--data", data)
    assert refused.returncode == 2
    assert "Only SELECT" in refused.stderr

    rows = []
    for name, where in (("v1", ""), ("v2", "step_index = 1")):
        done = cli(
            "freeze",
            name,
            "--data",
            data,
            "--where",
            where,
            "--recipe",
            '{"algorithm": "sft", "options": {"min_reward": null}}',
            "--note",
            "x",
        )
        assert done.returncode == 0, done.stderr
        rows.append(json.loads(done.stdout))
    assert [one["n_steps"] for one in rows] == [2, 1]
    listed = [json.loads(line) for line in cli("versions", "--data", data).stdout.splitlines()]
    assert [one["name"] for one in listed] == ["v2", "v1"]
    assert json.loads(cli("diff", "v1", "v2", "--data", data).stdout)["counts"]["removed"] == 1
    written = [
        json.loads(cli("export-version", "v1", "trl_sft", "--data", data, "--out", str(tmp_path / out)).stdout)
        for out in ("a", "b")
    ]
    assert written[0]["sha256"] == written[1]["sha256"]
    assert written[0]["n_rows"] == 2


def test_backup_restore_doctor_and_retention(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    lines = tmp_path / "steps.jsonl"
    lines.write_text("".join(json.dumps(step(i)) + "\n" for i in range(2)))
    assert cli("import", str(lines), "--data", data).returncode == 0
    report = json.loads(cli("backup", str(tmp_path / "backup"), "--data", data).stdout)
    assert report["n_steps"] == 2
    refused = cli("restore", str(tmp_path / "backup"), "--data", data)
    assert refused.returncode == 2
    assert "has a pool" in refused.stderr
    other = str(tmp_path / "other")
    assert json.loads(cli("restore", str(tmp_path / "backup"), "--data", other).stdout)["n_steps"] == 2

    deep = cli("doctor", "--deep", "--json", "--data", other, CLAW_STUDIO_PORT="0")
    checks = {one["check"]: one for one in json.loads(deep.stdout)}
    assert checks["steps"]["state"] == "ok"
    assert checks["steps"]["message"].startswith("2 steps, 2 compared")

    nothing = cli("retain", "--data", other)
    assert nothing.returncode == 2
    assert "older_than_days" in nothing.stderr
    preview = json.loads(cli("retain", "--older-than-days", "0", "--data", other).stdout)
    assert (preview["applied"], preview["n_trajectories"], preview["n_kept_recent"]) == (False, 0, 1)
