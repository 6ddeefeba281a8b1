"""Measures capture throughput of the whole product: gateway, journal, ingest and pool, for a minute at a time.

    python bench/gateway/bench_sustained.py [--seconds 60] [--gateways 0,1,2] [--without-peers]

``claw-studio serve`` with its default settings, and with other numbers of gateway processes, against an instant engine.
Every trajectory is a conversation of its own that grows turn by turn (``load.py``, ``growing``). When the load ends,
the bench reads how far ingest is behind, waits until the pool has every answered call, and counts the steps.

Peers (``bench_capture.py``) get the same load in the same run; each server runs alone. Processor time is that of a
server's processes, for ``claw-studio`` also by process, from the load's begin until ingest has caught up.
Writes bench/results/sustained.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from bench_capture import (
    CACHE,
    HERE,
    ROOT,
    Case,
    Target,
    about_run,
    cpu_s,
    drive,
    family,
    ready_line,
    ready_port,
    rss_mib,
    running,
    start_litellm,
    start_rllm,
    sync_ms,
)

RESULTS = ROOT / "bench" / "results" / "sustained.json"
DRAIN_S = 600.0
GOALS = {"rllm-model-gateway sqlite": 10.0, "litellm proxy": 30.0}
"""Times a peer's calls per second."""


CASES = [Case(size, n, stream=False, growing=True) for size in ("small", "agentic") for n in (16, 128)]


@contextlib.contextmanager
def product(work: Path, engine: str, gateways: int | None) -> Iterator[Target]:
    """``claw-studio serve`` as a user starts it; None: its default number of gateway processes."""
    data = work / "data"
    command = [sys.executable, "-m", "core.cli", "serve", "--data", str(data), "--port", "0", "--engine", engine]
    if gateways is not None:
        command += ["--gateways", str(gateways)]
    name = "claw-studio" if gateways is None else f"claw-studio --gateways {gateways}"
    with running(command, work / "serve.log") as process:
        base = ready_line(work / "serve.log", process)["base_url"]
        try:
            yield Target(name, f"{base}/TRAJECTORY-NAMED/p/v1", "the whole product", process=process)
        finally:
            process.terminate()
            process.wait(60)
    shutil.rmtree(data)


def wait_while(condition: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + DRAIN_S
    while condition() and time.perf_counter() < deadline:
        time.sleep(0.05)


def measure_product(target: Target, case: Case, seconds: float) -> dict[str, Any]:
    """One load, and what ingest does until it has caught up."""
    assert target.process is not None
    base = target.url.partition("/TRAJECTORY")[0]
    pids = family(target.process.pid)
    with httpx.Client(base_url=f"{base}/api/v1", timeout=120.0) as http:

        def behind() -> bool:
            stats = http.get("/stats").json()
            return bool(stats["ingest_lag_s"] > 0)

        wait_while(behind)
        n_before = http.get("/stats").json()["n_steps"]
        cpu = {pid: cpu_s([pid]) for pid in pids}
        run = drive(target, case, seconds)
        ended = time.perf_counter()
        stats = http.get("/stats").json()
        lag_s, n_behind = stats["ingest_lag_s"], n_before + run["requests"] - stats["n_steps"]
        wait_while(lambda: http.get("/stats").json()["n_steps"] - n_before < run["requests"])
        drained_s = time.perf_counter() - ended
        n_steps = http.get("/stats").json()["n_steps"] - n_before
    n = run["requests"]
    used = {pid: (cpu_s([pid]) - cpu[pid]) * 1e3 / n for pid in pids}
    return {
        **run,
        "ingest_lag_s_at_the_end": round(lag_s, 2),
        "calls_behind_at_the_end": n_behind,
        "drained_s": round(drained_s, 2),
        "calls_per_s_until_drained": round(n / (seconds + drained_s), 1),
        "steps_missing": n - n_steps,
        "cpu_ms_per_call": round(sum(used.values()), 3),
        "cpu_ms_per_call_of_main_process": round(used.pop(pids[0]), 3),
        "cpu_ms_per_call_of_gateway_processes": [round(ms, 3) for ms in used.values()],
        "rss_mib": rss_mib(pids),
    }


def measure_peer(target: Target, case: Case, seconds: float) -> dict[str, Any]:
    assert target.process is not None
    pids = family(target.process.pid)
    before = cpu_s(pids)
    run = drive(target, case, seconds)
    return {**run, "cpu_ms_per_call": round((cpu_s(pids) - before) * 1e3 / max(run["requests"], 1), 3)}


Start = Callable[[contextlib.ExitStack, Path], Target]


def targets(engine: str, gateways: list[int | None], *, peers: bool) -> Iterator[tuple[Start, Any]]:
    """What starts each server, and what measures it."""
    for n in gateways:
        yield lambda stack, work, n=n: stack.enter_context(product(work, f"{engine}/v1", n)), measure_product
    if peers:
        yield (
            lambda stack, work: next(one for one in start_rllm(stack, work, engine) if "sqlite" in one.name),
            measure_peer,
        )
        yield lambda stack, work: next(iter(start_litellm(stack, work, engine))), measure_peer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--gateways", default="", help="more numbers of processes, separated by commas")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--write", default=RESULTS.stem)
    options = parser.parse_args()
    started = time.monotonic()
    gateways: list[int | None] = [None, *(int(n) for n in options.gateways.split(",") if n)]
    CACHE.mkdir(exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as outer:
        folder = Path(outer.enter_context(tempfile.TemporaryDirectory(dir=CACHE)))
        log = folder / "upstream.log"
        upstream = outer.enter_context(running([sys.executable, str(HERE / "load.py"), "upstream", "0"], log))
        engine = f"http://127.0.0.1:{ready_port(log, upstream)}"
        load, sync = os.getloadavg()[0], sync_ms(folder)
        for number, (start, measure) in enumerate(targets(engine, gateways, peers=not options.without_peers)):
            for case in CASES:
                # A server of its own for each case: what one leaves in memory and on disk does not slow the next.
                work = folder / f"{number}-{case.size}-{case.connections}"
                work.mkdir()
                with contextlib.ExitStack() as stack:
                    target = start(stack, work)
                    target.url = target.url.replace("/sessions/bench/", "/sessions/TRAJECTORY-NAMED/")
                    drive(target, case, 1.0)
                    run = measure(target, case, options.seconds)
                results.setdefault(target.name, {})[case.name] = run
                print(f"{target.name:28} {case.name:26} {json.dumps(run)}", flush=True)
    ratios = {
        case.name: {
            peer: round(results["claw-studio"][case.name]["requests_per_s"] / rate, 1)
            for peer in GOALS
            if peer in results and (rate := results[peer][case.name]["requests_per_s"])
        }
        for case in CASES
    }
    document = {
        **about_run(load, started, sync_8kb_ms=sync),
        "seconds": options.seconds,
        "requests": {
            "small": "conversations of 10 calls, 6 KB each on average; answers of 500 prompt and 50 response tokens",
            "agentic": "turns 30 to 49 of conversations, 58 KB each on average; 15,000 prompt and 300 response tokens",
        },
        "results": results,
        "times_what_peers_do": ratios,
        "goals": GOALS,
    }
    path = RESULTS.with_stem(options.write)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
