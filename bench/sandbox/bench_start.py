"""Start-up of a sandbox at each level of this machine: ``python bench/sandbox/bench_start.py [--repeats 20] [--save]``.

The peer of the same run is a plain process. Measured is ``true``, from the start to its end, in a sandbox that exists;
making and removing the sandbox is measured beside it. Processor time is that of this process and of all children that
were waited for; at level ``strict`` the processes inside are not among them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from core.sandbox import probed

RESULTS = Path(__file__).resolve().parents[1] / "results" / "sandbox.json"


def processor_s() -> float:
    mine, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in (mine, children))


def measure(action: Callable[[], Any], repeats: int) -> dict[str, float]:
    walls = []
    before = processor_s()
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        walls.append(time.perf_counter() - begin)
    return {
        "wall_ms_median": round(1000 * statistics.median(walls), 2),
        "wall_ms_min": round(1000 * min(walls), 2),
        "processor_ms": round(1000 * (processor_s() - before) / repeats, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    plain = measure(lambda: subprocess.run(["true"], check=True), arguments.repeats)
    levels = {}
    for layer in probed():
        with layer.sandbox() as sandbox:
            run = measure(lambda one=sandbox: one.run(["true"]), arguments.repeats)
        made = measure(lambda one=layer: one.sandbox().close(), arguments.repeats)
        levels[layer.isolation.level] = {"layer": layer.isolation.layer, "run": run, "make_and_remove": made}
    machine = {"processors": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "kernel": platform.release()}
    result = {"machine": machine, "plain_process": plain, "levels": levels}
    print(json.dumps(result, indent=2))
    if arguments.save:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
