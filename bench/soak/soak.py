"""Runs mixed traffic for a long time, and checks that memory, threads and files do not grow.

    python bench/soak/soak.py [--seconds 7200] [--rate 8] [--open 5000] [--gateways 0] [--write NAME]

Thousands of conversations go on at a steady rate (``traffic.py``) while everything else is done to the studio
(``acts.py``). Looks tell memory, threads, descriptors, processes, disk, processor time and latency. ``growth.py``
judges slopes over the calls, never times: latency is told, and only what hangs fails. The exit status is 1 where
something grew, failed or was lost. SIGTERM ends it early, with what was seen until then. ``--write NAME`` puts the
result into bench/results/NAME.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "bench" / "gateway"))

import aiohttp  # noqa: E402
from bench_memory import running  # noqa: E402

from bench.soak.acts import Acts  # noqa: E402
from bench.soak.conversation import SCRIPT  # noqa: E402
from bench.soak.growth import judged  # noqa: E402
from bench.soak.traffic import HANG_S, Traffic  # noqa: E402
from core.serving.process import EngineProcess  # noqa: E402

RESULTS = ROOT / "bench" / "results"
ROOM_MB = 64.0
ACTS_A_CALL = 0.2
N_LOOKS = 240
N_KEPT = 60
"""Looks in the result; all are judged."""
TICKS = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for one in found:
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            continue  # it ended meanwhile
    return found


def measured(pid: int) -> dict[str, float]:
    """Resources of the service: private memory (MiB), threads, descriptors, processes, processor time (s)."""
    told = {"owner_mb": 0.0, "memory_mb": 0.0, "threads": 0, "descriptors": 0, "processes": 0, "cpu_s": 0.0}
    for one in family(pid):
        try:
            status = dict(line.split(":", 1) for line in Path(f"/proc/{one}/status").read_text().splitlines())
            spent = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:15]
            n_open = len(list(Path(f"/proc/{one}/fd").iterdir()))
        except OSError:
            continue
        own = int(status.get("RssAnon", "0").split()[0]) / 1024
        told["memory_mb"] += own
        told["owner_mb"] += own if one == pid else 0.0
        told["threads"] += int(status["Threads"])
        told["descriptors"] += n_open
        told["processes"] += 1
        # Its own time, and the time of those below it that have ended.
        told["cpu_s"] += sum(map(int, spent)) / TICKS
    return {name: round(value, 2) for name, value in told.items()}


def disk(data: Path) -> dict[str, float]:
    """MiB of the parts of a data folder."""
    told = {"journal_mb": 0, "pool_mb": 0, "opinions_mb": 0, "trash_mb": 0}
    for folder, _, names in os.walk(data):
        for name in names:
            path = Path(folder, name)
            part = path.relative_to(data).parts[0].partition(".")[0] + "_mb"
            if part in told:
                try:
                    told[part] += path.stat().st_size
                except OSError:
                    continue  # deleted meanwhile
    return {name: round(size / (1 << 20), 2) for name, size in told.items()}


def quantiles(values_s: list[float]) -> dict[str, float | None]:
    """Median and p99 in milliseconds."""
    ordered = sorted(values_s)
    if not ordered:
        return {"p50_ms": None, "p99_ms": None}
    return {
        "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 1),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 1),
    }


@contextmanager
def engine(folder: Path) -> Iterator[str]:
    """The scripted engine's base URL."""
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    process = EngineProcess.start("scripted", args=["--script", script]).wait_ready()
    try:
        yield process.base_url
    finally:
        process.stop()


async def soak(options: argparse.Namespace, pid: int, base: str, data: Path) -> dict[str, Any]:
    """Run it all; returns what was seen."""
    connector = aiohttp.TCPConnector(limit=0)
    within = aiohttp.ClientTimeout(total=HANG_S)
    async with aiohttp.ClientSession(connector=connector, timeout=within) as http:
        traffic = Traffic(http, base, options.open, options.seed)
        acts = Acts(traffic, data, options.seed + 1)
        began = time.monotonic()
        await traffic.open_all()
        opened_s = time.monotonic() - began
        print(json.dumps({"opened": options.open, "seconds": round(opened_s, 1)}), flush=True)
        await acts.each_once()
        stopping, told_to_end = asyncio.Event(), asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told_to_end.set)
        work = [
            asyncio.create_task(traffic.run(options.rate, stopping)),
            asyncio.create_task(acts.run((options.rate or 25) * ACTS_A_CALL, options.seconds, stopping)),
            asyncio.create_task(acts.witness(max(options.seconds / 500, 1.0), stopping)),
        ]
        looks: list[dict[str, Any]] = []
        readable: list[float] = []
        began = time.monotonic()
        for number in range(1, N_LOOKS + 1):
            left = began + options.seconds * number / N_LOOKS - time.monotonic()
            with suppress(TimeoutError):
                await asyncio.wait_for(told_to_end.wait(), max(left, 0.01))
            latencies, traffic.latencies_s = traffic.latencies_s, []
            visible, acts.readable_s = acts.readable_s, []
            readable += visible
            at = {"s": round(time.monotonic() - began, 1), "calls": traffic.n_calls}
            told = quantiles(latencies) | {"readable_p50_ms": quantiles(visible)["p50_ms"]}
            told["failed"] = sum(traffic.failed.values())
            looks.append({**at, **measured(pid), **disk(data), **told})
            print(json.dumps(looks[-1]), flush=True)
            if told_to_end.is_set() or any(task.done() for task in work):
                break
        stopping.set()
        for task in asyncio.as_completed(work):
            await task
        drained_s, stats = await acts.drained()
        if stats["n_dropped"]:
            traffic.failed["dropped"] = stats["n_dropped"]
        if n_lost := await acts.lost():
            traffic.failed["answered calls that are not in the pool"] = n_lost
        anonymous = await acts.anonymous()
        for name in ("split", "joined"):
            if anonymous[name]:
                traffic.failed[f"anonymous agents {name}"] = anonymous[name]
        whole = await acts.say("POST", "/integrity")
        if not whole["ok"]:
            traffic.failed["integrity"] = 1
        whole["n_versions_intact"] = sum(one["intact"] for one in whole.pop("versions"))
    return {
        "opened_s": round(opened_s, 1),
        "drained_s": round(drained_s, 1),
        "most_lag_s": round(acts.most_lag_s, 1),
        "calls": traffic.n_calls,
        "answered": len(traffic.all_answered),
        "done": dict(sorted(traffic.done.items())),
        "failed": dict(traffic.failed),
        "anonymous": anonymous,
        "integrity": whole,
        "readable": quantiles(readable),
        "acts": {name: quantiles(took) for name, took in sorted(acts.took_s.items())},
        "looks": looks,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--rate", type=float, default=8.0, help="calls a second; 0: as fast as they are answered")
    parser.add_argument("--open", type=int, default=5000, help="open trajectories")
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument(
        "--pool-memory", default="256MB", help="DuckDB's memory: small, so that its cache is full early"
    )
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--room", type=float, default=ROOM_MB, help="MiB that bounded caches may still fill")
    parser.add_argument("--slack", type=float, default=1.0, help="factor on the limits that a busy machine moves")
    parser.add_argument("--write", metavar="NAME")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    os.environ |= {
        "CLAW_STUDIO_SEGMENT_BYTES": str(8 << 20),
        "CLAW_STUDIO_ENGINE_TIMEOUT_S": "20",
        "CLAW_STUDIO_POOL_MEMORY": options.pool_memory,
    }
    with tempfile.TemporaryDirectory() as folder, engine(Path(folder)) as url:
        data = Path(folder) / "data"
        serve = [sys.executable, "-m", "core.cli", "serve", "--data", str(data), "--port", "0", "--engine", url]
        with running([*serve, "--gateways", str(options.gateways)]) as (studio, ready):
            seen = asyncio.run(soak(options, studio.pid, ready["base_url"], data))
        code = studio.returncode
    looks = seen.pop("looks")
    found = judged(looks, room_mb=options.room, slack=options.slack)
    grown = [f"{one['what']}: {one['found']}, at most {one['most']}" for one in found if one["grown"]]
    failed = {**seen["failed"], **({"exit": code} if code else {})}
    document = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
        },
        "options": vars(options),
        **seen,
        "failed": failed,
        "judged": found,
        "looks": looks[:: max(len(looks) // N_KEPT, 1)],
    }
    print(json.dumps({name: value for name, value in document.items() if name != "looks"}, indent=1))
    if options.write:
        (RESULTS / f"{options.write}.json").write_text(json.dumps(document, indent=1) + "\n")
    if failed or grown:
        print("FAILED:", *grown, *(f"{what}: {n}" for what, n in failed.items()), sep="\n  ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
