"""Two gateways against one, each with a quarter of a processor: ``python bench/cluster/bench_quota.py [--seconds 15]``.

Machines are agents without Ray, each with an address and one gateway (``tests.cluster.machines``); each gateway's
process is in a cgroup (version 1, as root) with ``cpu.cfs_quota_us``. Clients are processes with one connection each.
Printed and saved: calls per second with one machine and with two, processor time of the gateways per call.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

CGROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 20_000
N_CLIENTS = 8
BODY = json.dumps({"model": "scripted-1", "messages": [{"role": "user", "content": "hi"}]})


def client(host: str, port: int, key: str, seconds: float, number: int) -> int:
    """Call one gateway for so long; returns the answered calls."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "X-Prompt-Uid": "bench"}
    end, n = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        headers["X-Trajectory-Uid"] = f"{os.getpid()}-{number}-{n // 10}"
        connection.request("POST", "/v1/chat/completions", BODY, headers)
        with connection.getresponse() as response:
            body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {body[:200]!r}")
        n += 1
    return n


def limit(pid: int, quota: float, folder: Path) -> None:
    """Put a process into a cgroup that gets ``quota`` of a processor."""
    folder.mkdir()
    (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (folder / "cpu.cfs_quota_us").write_text(str(int(quota * PERIOD_US)))
    for task in Path(f"/proc/{pid}/task").iterdir():
        (folder / "tasks").write_text(task.name)


def cpu_s(pids: list[int]) -> float:
    """Processor seconds of processes so far."""
    ticks = sum(sum(map(int, Path(f"/proc/{p}/stat").read_text().rpartition(")")[2].split()[11:13])) for p in pids)
    return ticks / os.sysconf("SC_CLK_TCK")


def measure(pool: ProcessPoolExecutor, places: list[tuple[str, int, int]], key: str, seconds: float) -> dict[str, Any]:
    """``{calls_per_s, cpu_ms_per_call}`` of these gateways, ``(host, port, pid)`` each, all called at once."""
    pids = [pid for _, _, pid in places]
    before = cpu_s(pids)
    runs = [
        pool.submit(client, host, port, key, seconds, number) for host, port, _ in places for number in range(N_CLIENTS)
    ]
    n = sum(run.result() for run in runs)
    return {"calls_per_s": n / seconds, "cpu_ms_per_call": 1000 * (cpu_s(pids) - before) / n}


def main() -> None:
    """See the module."""
    from tests.cluster.machines import KEY, SCRIPT, Machine, admin, cluster_settings, free_port, nodes, wait_up
    from tests.conftest import ServeProcess, scripted_engine

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--quota", type=float, default=0.25)
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "cluster-quota.json")
    arguments = parser.parse_args()
    groups: list[Path] = []
    rows = []
    with tempfile.TemporaryDirectory() as name, scripted_engine(Path(name), {**SCRIPT, "default": DEFAULT}) as engine:
        folder = Path(name)
        hub_port, node_port = free_port(), free_port()
        served = ServeProcess(folder / "data", str(engine.base_url), env=cluster_settings(hub_port, node_port))
        machines = [Machine(address, folder, hub_port, node_port) for address in ("127.0.0.2", "127.0.0.3")]
        try:
            with admin(served.base_url) as http, ProcessPoolExecutor(2 * N_CLIENTS) as pool:
                wait_up(http, *(machine.node for machine in machines))
                places = []
                for machine in machines:
                    (pid,) = [one["pid"] for one in nodes(http)[machine.node]["gateways"]]
                    groups.append(CGROUPS / f"claw-bench-{os.getpid()}-{machine.node}")
                    limit(pid, arguments.quota, groups[-1])
                    assert "_raylet" not in Path(f"/proc/{pid}/maps").read_text()
                    places.append((machine.address, node_port, pid))
                measure(pool, places, KEY, 3.0)
                for _ in range(arguments.runs):
                    one = measure(pool, places[:1], KEY, arguments.seconds)
                    two = measure(pool, places, KEY, arguments.seconds)
                    rows.append(
                        {
                            "one": one,
                            "two": two,
                            "speed_up": two["calls_per_s"] / one["calls_per_s"],
                            "cpu_per_call_ratio": two["cpu_ms_per_call"] / one["cpu_ms_per_call"],
                            "load": os.getloadavg()[0],
                        }
                    )
                    print(json.dumps(rows[-1]), flush=True)
        finally:
            for machine in machines:
                machine.stop()
            served.stop()
            for group in groups:
                group.rmdir()
    result = {
        "quota": arguments.quota,
        "seconds": arguments.seconds,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "runs": rows,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


DEFAULT = {"reply": {"content": "An answer."}}

if __name__ == "__main__":
    main()
