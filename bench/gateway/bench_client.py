"""Compares the gateway's HTTP/1 client with aiohttp and httpx, in one run.

    python bench/gateway/bench_client.py [--seconds 1] [--rounds 5]

A server in a process of its own answers each POST of 6 KB at once, with a fixed body of 1 KB or 60 KB. Each case
(body, connections) is measured with all clients in turn, round by round, so that other work on the machine meets all.
Of each client the round with the most requests counts, and of processor time, which other work disturbs less, the
median of the rounds. Writes bench/results/http_client.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import uvloop
from bench_capture import about_run

from core.gateway.transport.http1 import HttpClient

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "http_client.json"
BODIES = {"1 KB": 1_000, "60 KB": 60_000}
CONNECTIONS = (1, 16, 128)
REQUEST = b"x" * 6_000
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer bench"}
OURS = "core.gateway.transport.http1"

Ask = Callable[[str], Awaitable[int]]
"""Posts ``REQUEST`` to a URL; how many bytes came back."""


class Server(asyncio.Protocol):
    """Answers a POST when its last byte is there; the path says with how many bytes."""

    def __init__(self, answers: dict[bytes, bytes]) -> None:
        self._answers = answers
        self._waiting = b""

    def connection_made(self, transport: Any) -> None:
        """Open."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """A piece of a request."""
        self._waiting += data
        head = self._waiting.find(b"\r\n\r\n")
        if head >= 0 and len(self._waiting) >= head + 4 + len(REQUEST):
            path = self._waiting.split(b" ", 2)[1]
            self._waiting = self._waiting[head + 4 + len(REQUEST) :]
            self._transport.write(self._answers[path])


async def serve() -> None:
    """Until stdin ends; the port is printed."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    answers = {b"/%d" % size: head % size + b"y" * size for size in BODIES.values()}
    server = await asyncio.get_running_loop().create_server(lambda: Server(answers), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


async def clients(stack: AsyncExitStack) -> dict[str, Ask]:
    """The three, each with as many connections as are asked for at once."""
    ours = HttpClient()
    stack.callback(ours.close)
    connector = aiohttp.TCPConnector(limit=0)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, auto_decompress=True))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    general = await stack.enter_async_context(httpx.AsyncClient(limits=limits, timeout=60.0))

    async def by_ours(url: str) -> int:
        async with await ours.request("POST", url, headers=HEADERS, body=REQUEST) as answer:
            return len(await answer.read())

    async def by_aiohttp(url: str) -> int:
        async with session.post(url, data=REQUEST, headers=HEADERS) as answer:
            return len(await answer.read())

    async def by_httpx(url: str) -> int:
        return len((await general.post(url, content=REQUEST, headers=HEADERS)).content)

    return {OURS: by_ours, "aiohttp": by_aiohttp, "httpx": by_httpx}


async def drive(ask: Ask, url: str, size: int, connections: int, seconds: float) -> dict[str, float]:
    """A closed loop of so many callers."""
    until = time.perf_counter() + seconds
    took: list[float] = []

    async def caller() -> None:
        while (began := time.perf_counter()) < until:
            assert await ask(url) == size
            took.append(time.perf_counter() - began)

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(connections)))
    cpu, elapsed = time.process_time() - cpu, time.perf_counter() - began
    took.sort()
    return {
        "requests_per_s": round(len(took) / elapsed, 1),
        "p50_ms": round(took[len(took) // 2] * 1e3, 3),
        "p99_ms": round(took[int(len(took) * 0.99)] * 1e3, 3),
        "cpu_us_per_request": round(cpu / len(took) * 1e6, 1),
    }


def summary(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The best round, and the median of processor time."""
    best = max(rounds, key=lambda one: one["requests_per_s"])
    return {**best, "cpu_us_per_request": statistics.median(one["cpu_us_per_request"] for one in rounds)}


async def measure(port: int, seconds: float, n_rounds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Case -> client -> what was measured."""
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    async with AsyncExitStack() as stack:
        asks = await clients(stack)
        for _ in range(n_rounds):
            for body, size in BODIES.items():
                for connections in CONNECTIONS:
                    case = runs.setdefault(f"{body}, {connections} connections", {})
                    for name, ask in asks.items():
                        url = f"http://127.0.0.1:{port}/{size}"
                        await drive(ask, url, size, connections, 0.1)
                        case.setdefault(name, []).append(await drive(ask, url, size, connections, seconds))
    return {case: {name: summary(rounds) for name, rounds in by.items()} for case, by in runs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve())
        return
    started, load = time.monotonic(), os.getloadavg()[0]
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin and server.stdout
        try:
            cases = uvloop.run(measure(int(server.stdout.readline()), options.seconds, options.rounds))
        finally:
            server.stdin.close()
    document = {
        **about_run(load, started),
        "versions": {name: version(name) for name in ("aiohttp", "httptools", "httpx", "uvloop")},
        "request_bytes": len(REQUEST),
        "seconds_per_run": options.seconds,
        "rounds": options.rounds,
        "cases": cases,
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    for case, by in cases.items():
        print(case, {name: (one["requests_per_s"], one["cpu_us_per_request"]) for name, one in by.items()})
    print(f"wrote {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
