"""The cost of completing trajectories: 64 × 4 calls from 32 threads, with and without their completions.

    python bench/loop/bench_completions.py [--rounds 3]

Each round makes the calls three times against one ``claw-studio serve`` with the scripted engine: without completions,
with one completion after each trajectory, and with all completions in one request at the end. Of each case the fastest
round counts, and the median of the service's processor time. Writes bench/results/completions.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from core.client import StudioClient
from core.serving.process import EngineProcess

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "completions.json"
N_TRAJECTORIES, N_CALLS, N_THREADS, N_WARM = 64, 4, 32, 8
SCRIPT = {"model": "scripted-1", "default": {"reply": {"content": "An answer of a few tokens."}}}


def calls(studio: StudioClient, uid: str) -> None:
    """One trajectory with a key of its own, as rollouts have."""
    studio.session(trajectory_uid=uid, prompt_uid=f"group-{uid[:6]}")
    messages = [{"role": "user", "content": f"Task {uid}"}]
    for _ in range(N_CALLS):
        answer = studio.call(
            "POST", f"/{uid}/group-{uid[:6]}/v1/chat/completions", {"model": "m", "messages": messages}
        )
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "Next."}]


def without(studio: StudioClient, uids: list[str], pool: ThreadPoolExecutor) -> None:
    list(pool.map(lambda uid: calls(studio, uid), uids))


def one_by_one(studio: StudioClient, uids: list[str], pool: ThreadPoolExecutor) -> None:
    def run(uid: str) -> None:
        calls(studio, uid)
        studio.complete(uid, reward=1.0)

    list(pool.map(run, uids))


def all_at_once(studio: StudioClient, uids: list[str], pool: ThreadPoolExecutor) -> None:
    without(studio, uids, pool)
    studio.complete_many(dict.fromkeys(uids, 1.0))


def stored(studio: StudioClient, n_steps: int) -> None:
    """Return when so many steps are in the pool."""
    while studio.stats()["n_steps"] < n_steps:
        time.sleep(0.1)


CASES: dict[str, Callable[[StudioClient, list[str], ThreadPoolExecutor], None]] = {
    "without": without, "one by one": one_by_one, "all at once": all_at_once,
}  # fmt: skip


def cpu_s(pid: int) -> float:
    """Processor time of a process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(rounds: int, folder: Path) -> dict[str, Any]:
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    seconds: dict[str, list[float]] = {name: [] for name in CASES}
    cpu: dict[str, list[float]] = {name: [] for name in CASES}
    with EngineProcess.start("scripted", args=["--script", script], startup_timeout_s=300) as engine:
        command = [sys.executable, "-m", "core.cli", "serve", "--data", str(folder / "data"), "--port", "0"]
        process = subprocess.Popen([*command, "--engine", str(engine.base_url)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            base_url = json.loads(process.stdout.readline())["base_url"]
            threading.Thread(target=process.stdout.read, daemon=True).start()
            studio = StudioClient(base_url, timeout_s=600)
            with ThreadPoolExecutor(N_THREADS) as pool:
                without(studio, [f"warm-{k}" for k in range(N_WARM)], pool)
                n_steps = N_WARM * N_CALLS
                stored(studio, n_steps)
                for number in range(rounds):
                    for name, run in CASES.items():
                        uids = [f"{name.replace(' ', '-')}-{number}-{k}" for k in range(N_TRAJECTORIES)]
                        before, began = cpu_s(process.pid), time.monotonic()
                        run(studio, uids, pool)
                        seconds[name].append(time.monotonic() - began)
                        # No case's work counts for the next.
                        n_steps += N_TRAJECTORIES * N_CALLS
                        stored(studio, n_steps)
                        cpu[name].append(cpu_s(process.pid) - before)
        finally:
            process.terminate()
            process.wait(60)
    return {
        name: {"seconds": min(seconds[name]), "cpu_s": statistics.median(cpu[name]), "all_seconds": seconds[name]}
        for name in CASES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="measure what completions cost")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load_before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        cases = measure(arguments.rounds, Path(folder))
    base = cases["without"]
    for case in cases.values():
        case["times"], case["times_cpu"] = case["seconds"] / base["seconds"], case["cpu_s"] / base["cpu_s"]
    about = {"trajectories": N_TRAJECTORIES, "calls": N_CALLS, "threads": N_THREADS, "rounds": arguments.rounds}
    arguments.out.write_text(json.dumps({"machine": machine, "run": about, "cases": cases}, indent=2) + "\n")
    print(json.dumps(cases, indent=2))


if __name__ == "__main__":
    main()
