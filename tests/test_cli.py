"""The command line without a running service: it opens one for the length of the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq


def cli(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "core.cli", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
    )


def step(index: int) -> dict[str, object]:
    return {
        "trajectory_uid": "t",
        "step_index": index,
        "prompt_ids": [1, 2],
        "response_ids": [3],
        "reward": float(index),
        "is_last": index == 1,
    }


def test_import_then_export_without_a_service(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    lines = tmp_path / "steps.jsonl"
    lines.write_text("".join(json.dumps(step(i)) + "\n" for i in range(2)))
    for _ in range(2):
        done = cli("import", str(lines), "--data", data)
        assert json.loads(done.stdout) == {"imported": 2}, done.stderr
    done = cli("export", "steps_parquet", "--data", data, "--recipe", '{"algorithm": "sft"}')
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["n_rows"] == 2, "the same file twice changes nothing"
    assert pq.read_table(result["path"]).num_rows == 2


def test_a_bad_line_is_named_and_nothing_is_taken(tmp_path: Path) -> None:
    lines = tmp_path / "steps.jsonl"
    lines.write_text(json.dumps(step(0)) + "\n" + '{"trajectory_uid": "t"}\n')
    done = cli("import", str(lines), "--data", str(tmp_path / "data"))
    assert done.returncode == 2
    assert "steps.1.step_index" in done.stderr


def test_doctor_names_the_mend(tmp_path: Path) -> None:
    good = cli("doctor", "--json", "--data", str(tmp_path / "data"), CLAW_STUDIO_PORT="0")
    findings = {f["check"]: f for f in json.loads(good.stdout)}
    assert good.returncode == 0, good.stdout
    assert findings["tokenizer"]["state"] == findings["engine"]["state"] == "ok"
    bad = cli("doctor", "--json", "--data", str(tmp_path / "data"), CLAW_STUDIO_ENGINE="http://127.0.0.1:9/v1")
    findings = {f["check"]: f for f in json.loads(bad.stdout)}
    assert bad.returncode == 1
    assert "CLAW_STUDIO_ENGINE" in findings["engine"]["mend"]


def test_a_misspelt_setting_is_named(tmp_path: Path) -> None:
    toml = tmp_path / "studio.toml"
    toml.write_text("prot = 8100\n")
    done = cli("doctor", CLAW_STUDIO_CONFIG=str(toml))
    assert done.returncode == 2
    assert "prot" in done.stderr
