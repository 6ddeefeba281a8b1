"""What one update of the learning demo costs: seconds by stage, and processor time by part.

    python bench/learn/bench_update.py [--updates 5]

Runs ``claw-studio demo --learn`` on an empty data folder and reads the processor time of its processes from /proc
between the first evaluation and the last update. The sandboxed processes of the checks are not seen there, so the
studio's share of the whole is a little smaller than reported. Writes bench/results/update.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.learn.bench_learn import of_folder  # noqa: E402
from bench.tree.common import machine  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "update.json"
TICKS = os.sysconf("SC_CLK_TCK")
PARTS = {"core.serving.local": "engine", "train_policy.py": "trainer", "core.tasks.learn": "agents"}
"""Part by a word of the command line. All other processes are the studio's."""


def processor_s(root: int) -> Counter[str]:
    """Processor time so far of a process and its descendants, seconds by part."""
    processes: dict[int, tuple[int, list[str], str]] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            processes[int(path.name)] = (int(fields[1]), fields[11:15], command)
    seconds: Counter[str] = Counter()
    for pid, (_, times, command) in processes.items():
        above = pid
        while above != root and above in processes:
            above = processes[above][0]
        if above != root:
            continue
        part = next((name for word, name in PARTS.items() if word in command), "studio")
        seconds[part] += sum(map(int, times)) / TICKS
    return seconds


def measure(updates: int, folder: Path) -> dict[str, Any]:
    """One run."""
    command = [sys.executable, "-m", "core.cli", "demo", "--learn", "--json", "--data", str(folder)]
    load = os.getloadavg()[0]
    run = subprocess.Popen([*command, "--updates", str(updates)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    events, before, after = [], Counter[str](), Counter[str]()
    for line in run.stdout:
        if not line.startswith("{"):
            continue
        events.append(json.loads(line))
        if events[-1]["event"] == "evaluation" and not after:
            before = processor_s(run.pid)
        elif events[-1]["event"] == "update":
            after = processor_s(run.pid)
    if run.wait():
        raise SystemExit(run.returncode)
    each = {part: round((after[part] - before[part]) / updates, 3) for part in after}
    total = sum(each.values())
    (made,) = of_folder(folder, events)
    stages = {name: statistics.median(one[name] for one in made["stages_s"]) for name in made["stages_s"][0]}
    return {
        "updates": updates,
        "load_at_start": round(load, 1),
        "seconds_median": statistics.median(made["update_s"]),
        "stages_s_median": stages,
        "processor_s": each,
        "processor_s_all": round(total, 3),
        "studio_share": round(each["studio"] / total, 3),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="measure what an update of the learning demo costs")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="claw-bench-") as folder:
        report = measure(arguments.updates, Path(folder))
    report["machine"] = machine("torch", "transformers", "duckdb")
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
