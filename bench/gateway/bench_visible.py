"""Measures the time from an answer to its step on the page at 500 calls/s, and the cost of an open page.

    python bench/gateway/bench_visible.py [--rate 500] [--seconds 20] [--rounds 3]

Runs the studio as a user starts it (``streamlit run studio``) against an instant engine: with one gateway process,
which is the default, with two, and with none of its own. First an open loop of small calls at a fixed rate, in rounds
without a browser and with the Collect page open in Chromium; of every 250th call the time is taken from its reply until
``GET /api/v1/steps/{uid}`` has it, while ``GET /api/v1/stats`` tells the lag. The round in the middle counts, all are
told. Then a closed loop of 16 connections, in turn with and without the open page. Writes bench/results/visible.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
from bench_capture import CACHE, HERE, ROOT, Case, Target, drive, free_port, ready_port, running, sync_ms
from load import SIZES, request_body
from playwright.sync_api import sync_playwright

RESULTS = ROOT / "bench" / "results" / "visible.json"
EVERY = 250
"""One call in so many is waited for."""
POLL_S = 0.05
POLL_SHARE = 0.1
"""Polling slows down with the waiting time, to this fraction of it, so that polling is not a load."""
CONNECTIONS = 64
MODES = {"one gateway process": 1, "two gateway processes": 2, "gateway in the studio": 0}


@contextlib.contextmanager
def studio(engine: str, work: Path, gateways: int) -> Iterator[tuple[str, str]]:
    """(pages' address, gateway's address)."""
    work.mkdir()
    port, gateway_port = free_port(), free_port()
    env = {
        **os.environ,
        "CLAW_STUDIO_DATA_DIR": str(work / "data"),
        "CLAW_STUDIO_PORT": str(gateway_port),
        "CLAW_STUDIO_ENGINE": engine,
        "CLAW_STUDIO_GATEWAYS": str(gateways),
    }
    command = [sys.executable, "-m", "streamlit", "run", "studio", "--server.port", str(port)]
    command += ["--server.headless", "true", "--browser.gatherUsageStats", "false"]
    with (work / "studio.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT)
    try:
        asyncio.run(answers(f"http://127.0.0.1:{gateway_port}/readyz", f"http://127.0.0.1:{port}/_stcore/health"))
        yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{gateway_port}"
    finally:
        process.terminate()
        process.wait(60)


async def answers(*urls: str) -> None:
    """Wait until each address answers 200."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(120):
        for url in urls:
            status = 0
            while status != 200:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(url) as response:
                        status = response.status
                await asyncio.sleep(0.1)


async def visible(base: str, rate: float, seconds: float) -> dict[str, Any]:
    """Calls at a fixed rate, whatever the answers do."""
    body = request_body(SIZES["small"])
    run = uuid.uuid4().hex[:8]
    latencies: list[float] = []
    seen: list[float] = []
    lags: list[float] = []
    errors = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=CONNECTIONS)) as session:

        async def call(number: int) -> None:
            nonlocal errors
            started = time.perf_counter()
            headers = {"Content-Type": "application/json", "X-Trajectory-Uid": f"{run}-{number // 20}"}
            async with session.post(f"{base}/v1/chat/completions", data=body, headers=headers) as response:
                await response.read()
                errors += response.status != 200
                uid = response.headers["x-step-uid"]
            replied = time.perf_counter()
            latencies.append(replied - started)
            if number % EVERY == 0:
                await until_seen(uid)
                seen.append(time.perf_counter() - replied)

        async def until_seen(uid: str) -> None:
            began = time.perf_counter()
            while True:
                async with session.get(f"{base}/api/v1/steps/{uid}") as response:
                    if response.status == 200:
                        return
                await asyncio.sleep(max(POLL_S, POLL_SHARE * (time.perf_counter() - began)))

        async def watch() -> None:
            while True:
                async with session.get(f"{base}/api/v1/stats") as response:
                    lags.append((await response.json())["ingest_lag_s"])
                await asyncio.sleep(1.0)

        watcher = asyncio.create_task(watch())
        begun = time.perf_counter()
        calls = []
        n_calls = int(rate * seconds)
        for number in range(n_calls):
            if (ahead := begun + number / rate - time.perf_counter()) > 0:
                await asyncio.sleep(ahead)
            calls.append(asyncio.create_task(call(number)))
        sent_s = time.perf_counter() - begun
        await asyncio.gather(*calls)
        async with session.get(f"{base}/api/v1/stats") as response:
            stats = await response.json()
        watcher.cancel()
    return {
        "calls": n_calls,
        "calls_per_s": round(n_calls / sent_s, 1),
        "errors": errors,
        "reply_ms": percentiles(latencies, 1e3),
        "reply_to_readable_s": percentiles(seen, 1.0),
        "ingest_lag_s_max": round(max(lags), 3),
        "readable_at_the_end": stats["n_steps"],
        "dropped": stats["n_dropped"],
    }


def middle(base: str, rate: float, seconds: float, rounds: int) -> dict[str, Any]:
    """The round whose p95 is the median, and the p95 of all."""
    runs = [asyncio.run(visible(base, rate, seconds)) for _ in range(rounds)]
    p95 = [run["reply_to_readable_s"]["p95"] for run in runs]
    chosen = runs[p95.index(sorted(p95)[len(p95) // 2])]
    return {**chosen, "reply_to_readable_p95_s_of_rounds": p95}


def percentiles(values: list[float], scale: float) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{p}": round(ordered[int((len(ordered) - 1) * p / 100)] * scale, 3) for p in (50, 95, 99)}


@contextlib.contextmanager
def collect_page(pages: str) -> Iterator[None]:
    """The Collect page open in a browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{pages}/collect")
        page.wait_for_selector(".cs-head")
        # The loop of Playwright's synchronous interface is this thread's: calls are made by another one.
        yield
        browser.close()


def in_another_thread(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a function that runs an event loop of its own."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def watched(pages: str, base: str, rounds: int, seconds: float) -> dict[str, Any]:
    """The closed loop, alternately without and with an open page."""
    target = Target("studio", f"{base}/TRAJECTORY-NAMED/p/v1", "")
    case = Case("small", 16, False)
    runs: dict[str, list[dict[str, Any]]] = {"nobody watches": [], "the Collect page is open": []}
    for _ in range(rounds):
        runs["nobody watches"].append(drive(target, case, seconds))
        with collect_page(pages):
            runs["the Collect page is open"].append(drive(target, case, seconds))
    best = {name: max(measured, key=lambda run: run["requests_per_s"]) for name, measured in runs.items()}
    alone, beside = (best[name]["requests_per_s"] for name in runs)
    kept = ("requests_per_s", "p50_ms", "p99_ms", "errors")
    return {
        **{name: {key: run[key] for key in kept} for name, run in best.items()},
        "p99_ms_of_rounds_watched": [run["p99_ms"] for run in runs["the Collect page is open"]],
        "share_left": round(beside / alone, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    CACHE.mkdir(exist_ok=True)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        work = Path(folder)
        log = work / "upstream.log"
        with running([sys.executable, str(HERE / "load.py"), "upstream", "0"], log) as upstream:
            engine = f"http://127.0.0.1:{ready_port(log, upstream)}/v1"
            sync = sync_ms(work)
            results = {}
            for name, gateways in MODES.items():
                with studio(engine, work / str(gateways), gateways) as (pages, base):
                    asyncio.run(visible(base, 50, 2))
                    given = (base, options.rate, options.seconds, options.rounds)
                    alone = middle(*given)
                    with collect_page(pages):
                        open_page = in_another_thread(lambda given=given: middle(*given))
                    beside = watched(pages, base, options.rounds, 3.0)
                results[name] = {
                    "at_rate": {"wanted_calls_per_s": options.rate, **alone},
                    "at_rate_with_the_collect_page": open_page,
                    "closed_loop_of_16": beside,
                }
                print(name, json.dumps(results[name]), flush=True)
    document = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
            "sync_8kb_ms": sync,
        },
        "request": "6 KB chat request; answer of 500 prompt and 50 response token ids with log-probs",
        **results,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(f"wrote {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
