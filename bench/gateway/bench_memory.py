"""Measures memory under small calls, each in a separate trajectory: of ``claw-studio serve``, and of a gateway alone.

    python bench/gateway/bench_memory.py [--calls 90000] [--no-write]

An instant upstream tells 500 prompt and 50 response token ids. After every twelfth of the calls ingest is let catch up
and the process' memory is read. What is kept per trajectory is bounded (``core.ingest.linker.MAX_BYTES``,
``core.ingest.reader.MAX_BYTES``), so the second half must add next to nothing: what it adds are the rows' own indexes
and the database's cache of its file, which ``pool_memory`` bounds. A gateway alone keeps nothing of a call.
Writes bench/results/memory.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
RESULTS = ROOT / "bench" / "results" / "memory.json"
CONNECTIONS = 16
LOOKS = 12
CAUGHT_UP_S = 120.0


@contextmanager
def running(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A process that prints one line of JSON when it is ready; ended by SIGTERM and the end of its input."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdin is not None and process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(60)
        process.stdin.close()
        process.stdout.close()


async def call(base: str, numbers: Iterator[int], until: int) -> None:
    """Calls over a fixed number of connections until that number is reached."""
    parts = urlsplit(base)

    async def one() -> None:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for number in numbers:
            question = f"Question {number}: what comes next?"
            messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": question}]
            body = json.dumps({"model": "bench", "messages": messages}, separators=(",", ":")).encode()
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
                f"X-Trajectory-Uid: t-{number}\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert answer.startswith(b"http/1.1 200"), answer
            await reader.readexactly(int(answer.split(b"content-length:")[1].split(b"\r\n")[0]))
            if number + CONNECTIONS > until:
                break
        writer.close()

    await asyncio.gather(*(one() for _ in range(CONNECTIONS)))


def memory(pid: int) -> dict[str, float]:
    """Resident memory that is the process' own, MB, and its threads and descriptors."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        "anonymous_mb": round(int(status["RssAnon"].split()[0]) / 1024, 1),
        "resident_mb": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "threads": int(status["Threads"]),
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
    }


def caught_up(base: str, n_steps: int) -> None:
    """Wait until the pool holds so many steps."""
    deadline = time.monotonic() + CAUGHT_UP_S
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{base}/api/v1/stats", timeout=60) as answer:
            if json.load(answer)["n_steps"] >= n_steps:
                return
        time.sleep(0.2)
    raise TimeoutError(f"{n_steps} steps were not readable after {CAUGHT_UP_S:.0f} s")


def measure(n_calls: int, folder: Path, *, alone: bool) -> list[dict[str, float]]:
    """Memory after each part of the calls, of a gateway alone or of the whole service."""
    upstream = [sys.executable, str(HERE / "load.py"), "upstream", "0"]
    with running(upstream) as (_, engine):
        url = f"http://127.0.0.1:{engine['port']}/v1"
        serve = [sys.executable, "-m", "core.cli", "serve", "--data", str(folder), "--port", "0", "--engine", url]
        if alone:
            serve = [sys.executable, str(HERE / "serve.py"), str(folder), url]
        with running(serve) as (studio, ready):
            base = ready.get("base_url") or f"http://127.0.0.1:{ready['port']}"
            looks = [{"calls": 0.0, **memory(studio.pid)}]
            numbers = count(1)
            done = 0
            for look in range(1, LOOKS + 1):
                asyncio.run(call(base, numbers, n_calls * look // LOOKS))
                done = next(numbers) - 1
                if not alone:
                    # These numbers were reserved and not used.
                    caught_up(base, done - look + 1)
                looks.append({"calls": float(done), **memory(studio.pid)})
                print(json.dumps(looks[-1]), flush=True)
            return looks


def bytes_a_call(looks: list[dict[str, float]]) -> float:
    """Own memory added for each call between the first and the last of these looks, bytes."""
    first, last = looks[0], looks[-1]
    return (last["anonymous_mb"] - first["anonymous_mb"]) * (1 << 20) / (last["calls"] - first["calls"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=90_000)
    parser.add_argument("--no-write", action="store_true", help="print the result alone")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    results: dict[str, Any] = {}
    for name in ("service", "gateway_alone"):
        with tempfile.TemporaryDirectory() as folder:
            looks = measure(options.calls, Path(folder), alone=name == "gateway_alone")
        halves = {"first_half": looks[: LOOKS // 2 + 1], "second_half": looks[LOOKS // 2 :]}
        results[name] = {
            "bytes_a_call": {half: round(bytes_a_call(part)) for half, part in halves.items()},
            "looks": looks,
        }
        print(json.dumps({name: results[name]["bytes_a_call"]}), flush=True)
    document = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_before": round(load, 2),
        },
        "request": "2 messages, a trajectory for each call; answer of 500 prompt and 50 response token ids",
        **results,
    }
    if not options.no_write:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
        print(f"wrote {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
