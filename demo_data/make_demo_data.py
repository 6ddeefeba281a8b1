"""Generates ``demo_data/``: the policy's script, and the journal of a demo run with it.

    python demo_data/make_demo_data.py

Nothing is made up: a studio is opened in a temporary folder, the demo agent works on every task through its
gateway, the checks write the rewards, and what the journal then holds is written out. Uids are named by task
and number, so making the data again gives the same records but for times. All text is our own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from core import records
from core.client import StudioClient
from core.config import Settings
from core.journal import read_records
from core.service import Service
from core.serving.process import EngineProcess
from core.tasks.demo import DEMO_DATA, DemoRun
from core.tasks.demo_load import DEMO_JOURNAL
from core.tasks.demo_policy import MODEL, WAYS, policy_script
from core.tasks.demo_tasks import demo_tasks
from core.tasks.task import Task

N_ROLLOUTS = len(WAYS)
SCRIPT_NAME = "policy.json"


def trajectory_uid(task: Task, k: int) -> str:
    """Stable name of rollout ``k`` of a task."""
    return f"{task.task_uid}-{k}"


def write_script(folder: Path) -> Path:
    """The scripted engine's script, from ``core.tasks.demo_policy``."""
    path = folder / SCRIPT_NAME
    path.write_text(json.dumps(policy_script(demo_tasks()), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def capture(script: Path, tasks: Sequence[Task], *, n_rollouts: int = N_ROLLOUTS) -> list[dict[str, Any]]:
    """Run the demo for real in a temporary studio; the records of its journal.

    The first half of the tasks is sampled under policy version 1, the second under version 2.
    """
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), port=0, engine="http://127.0.0.1:9/v1")
        service = Service.open(settings)
        try:
            with EngineProcess.start("scripted", args=["--script", script]) as engine:
                service.engines.add("demo", str(engine.base_url), models=[MODEL])
                for version, part in ((1, tasks[: len(tasks) // 2]), (2, tasks[len(tasks) // 2 :])):
                    StudioClient(service.base_url).policy(version)
                    run = DemoRun(service.base_url, n_rollouts=n_rollouts, tasks=part, name_trajectory=trajectory_uid)
                    run.start()
                    run.join()
                    status = run.status()
                    if status["error"] is not None or status["done"] != status["total"]:
                        raise SystemExit(f"the demo failed: {status}")
        finally:
            service.close()
        return [records.parse(found.payload) for found in read_records(settings.journal_dir, {})]


def stable(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls and completions, trajectory by trajectory, calls named by trajectory and number."""
    order = {task.task_uid: index for index, task in enumerate(demo_tasks())}
    kept: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for record in found:
        if record["kind"] == "call":
            identity = record["identity"]
            key = (order[identity["prompt_uid"]], identity["trajectory_uid"])
            calls = kept.setdefault(key, [])
            calls.append({**record, "step_uid": f"{identity['trajectory_uid']}-step-{len(calls)}"})
        elif record["kind"] == "complete":
            uid = record["trajectory_uid"]
            (key,) = (known for known in kept if known[1] == uid)
            kept[key].append({**record, "prompt_uid": uid.rsplit("-", 1)[0]})
    return [record for key in sorted(kept) for record in kept[key]]


def write(found: list[dict[str, Any]], path: Path) -> int:
    """One record per line, zstd; the size in bytes."""
    lines = b"".join(orjson.dumps(record) + b"\n" for record in found)
    path.write_bytes(pa.Codec("zstd", compression_level=19).compress(lines, asbytes=True))
    return path.stat().st_size


def main() -> None:
    """Write script and journal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=DEMO_DATA)
    folder: Path = parser.parse_args().out
    found = stable(capture(write_script(folder), demo_tasks()))
    size = write(found, folder / DEMO_JOURNAL.name)
    n_calls = sum(record["kind"] == "call" for record in found)
    print(f"{n_calls} calls, {len(found) - n_calls} completions, {size:,} bytes -> {folder / DEMO_JOURNAL.name}")


if __name__ == "__main__":
    main()
