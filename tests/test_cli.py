"""The command line without a running service: it opens one for the length of the command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

from core.config import Settings
from core.service import Service


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
    for imported, known in ((2, 0), (0, 2)):
        done = cli("import", str(lines), "--data", data)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["imported"], report["n_known"], report["formats"]) == (imported, known, {str(lines): "steps"})
    done = cli(
        "export", "steps_parquet", "--data", data, "--recipe", '{"algorithm": "sft", "options": {"min_reward": null}}'
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["n_rows"] == 2, "the same file twice changes nothing"
    assert pq.read_table(result["path"]).num_rows == 2


def test_a_bad_line_is_named_and_the_others_are_taken_unless_told_otherwise(tmp_path: Path) -> None:
    lines = tmp_path / "steps.jsonl"
    lines.write_text(json.dumps(step(0)) + "\n" + '{"trajectory_uid": "t"}\n')
    data = str(tmp_path / "data")
    done = cli("import", str(lines), "--data", data, "--all-or-nothing")
    assert done.returncode == 2
    assert "step_index: steps.jsonl:2: Field required" in done.stderr
    done = cli("import", str(lines), "--data", data)
    assert done.returncode == 1
    assert "steps.jsonl:2: step_index: Field required" in done.stderr
    report = json.loads(done.stdout)
    assert (report["imported"], report["n_known"], report["n_problems"]) == (1, 0, 1)


def test_keys_are_listed_and_revoked(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", port=0, engine="http://127.0.0.1:9/v1")
    service = Service.open(settings)
    try:
        made = service.mint_session(trajectory_uid="t-key", agent="probe")
    finally:
        service.close()
    listed = [json.loads(line) for line in cli("keys", "list", "--data", str(tmp_path / "data")).stdout.splitlines()]
    assert [(row["key_id"], row["trajectory_uid"], row["revoked_at"]) for row in listed] == [
        (made["key_id"], "t-key", None)
    ]
    done = cli("keys", "revoke", "t-key", "--data", str(tmp_path / "data"))
    assert json.loads(done.stdout) == {"revoked": [made["key_id"]]}
    service = Service.open(settings)
    try:
        assert service.keys.resolve(made["api_key"]) is None, "it stays revoked"
    finally:
        service.close()
    assert cli("keys", "revoke", "nobody", "--data", str(tmp_path / "data")).returncode == 2


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


WAITING = """
import time
from core.cli import await_end

wait = await_end()
until = time.monotonic() + 3
print("ready", flush=True)
n = 0
while time.monotonic() < until:
    wait()
    n += 1
print(n, flush=True)
"""


def test_a_signal_in_the_midst_of_the_wait_ends_it() -> None:
    """Signals at every moment of some ten thousand waits: none of them may be the last."""
    with subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None and waiting.stdout.readline() == "ready\n"
        until = time.monotonic() + 60
        while waiting.poll() is None and time.monotonic() < until:
            waiting.send_signal(signal.SIGTERM)
        waiting.kill()
        # One that comes while Python ends meets no handler any more.
        assert waiting.wait() in (0, -signal.SIGTERM), "it waits for good"
        assert int(waiting.stdout.read() or 0) > 1_000
