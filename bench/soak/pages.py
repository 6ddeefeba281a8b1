"""Opens a hundred pages of the studio without browsers, under model calls: measures their cost, and what remains after.

    python bench/soak/pages.py [--pages 100] [--seconds 120] [--rate 5] [--gateways 0] [--no-write]

Each page is a websocket that speaks as Streamlit's own frontend does: it opens one of the ten pages, takes all that is
drawn, and asks for each live part again by the clock that the part names. Looks tell calls and memory without pages,
with them, and after they were closed. Writes bench/results/pages.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import aiohttp  # noqa: E402
from streamlit.proto.BackMsg_pb2 import BackMsg  # noqa: E402
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg  # noqa: E402

from bench.soak.soak import engine, measured, quantiles  # noqa: E402
from bench.soak.traffic import HANG_S, Traffic  # noqa: E402
from tests.browser.conftest import start_studio  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "pages.json"
NAMES = ["", *sorted(path.stem for path in (ROOT / "pages").glob("*.py") if path.stem != "overview")]
"""As their addresses have them: Overview is the first page."""
OPENED_S = 600.0
CLOSED_S = 150.0
"""A session whose websocket is gone is kept for two minutes, for one that comes back."""


class Page:
    """One open page.

    Args:
        url: of the studio.
        name: of the page, as its address has it.
    """

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self.whole_s: list[float] = []
        self.parts_s: list[float] = []
        self.errors: list[str] = []
        self.n_drawn = 0
        self.drawn = asyncio.Event()

    async def run(self, http: aiohttp.ClientSession, stopping: asyncio.Event) -> None:
        """Open the page, and keep it open until stopped."""
        address = urlsplit(self.url)
        stream = f"ws://{address.netloc}/_stcore/stream"
        timers: list[asyncio.Task[None]] = []
        sent_at: dict[str, float] = {}
        async with http.ws_connect(stream, protocols=["streamlit"], origin=self.url, max_msg_size=0) as socket:

            async def ask(fragment: str = "") -> None:
                # A part that was asked for again before it came waits since the first time.
                sent_at.setdefault(fragment, time.perf_counter())
                message = BackMsg()
                message.rerun_script.page_name = self.name
                message.rerun_script.query_string = ""
                message.rerun_script.fragment_id = fragment
                message.rerun_script.is_auto_rerun = bool(fragment)
                await socket.send_bytes(message.SerializeToString())

            async def again(fragment: str, every_s: float) -> None:
                while True:
                    await asyncio.sleep(every_s)
                    await ask(fragment)

            async def leave() -> None:
                await stopping.wait()
                await socket.close()

            leaving = asyncio.create_task(leave())
            await ask()
            parts: set[str] = set()
            async for frame in socket:
                if frame.type != aiohttp.WSMsgType.BINARY:
                    continue
                forwarded = ForwardMsg.FromString(frame.data)
                kind = forwarded.WhichOneof("type")
                if kind == "auto_rerun":
                    every = forwarded.auto_rerun
                    timers.append(asyncio.create_task(again(every.fragment_id, every.interval)))
                elif kind == "delta":
                    self.n_drawn += 1
                    parts.add(forwarded.delta.fragment_id)
                    if forwarded.delta.new_element.HasField("exception"):
                        self.errors.append(forwarded.delta.new_element.exception.message)
                elif kind == "script_finished" and forwarded.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
                    self.whole_s.append(time.perf_counter() - sent_at.pop(""))
                    self.drawn.set()
                elif kind == "script_finished":
                    now = time.perf_counter()
                    self.parts_s += [now - sent_at.pop(part) for part in parts if part in sent_at]
                    parts.clear()
            leaving.cancel()
            for timer in timers:
                timer.cancel()


async def look(traffic: Traffic, pid: int, seconds: float) -> dict[str, Any]:
    """What so many seconds of calls saw."""
    traffic.latencies_s.clear()
    before = measured(pid)["cpu_s"]
    await asyncio.sleep(seconds)
    sample = measured(pid)
    used = round((sample.pop("cpu_s") - before) / seconds, 3)
    return {**sample, "cores": used, "answered": len(traffic.latencies_s), **quantiles(traffic.latencies_s)}


async def measure(options: argparse.Namespace, pid: int, gateway: str, pages_url: str) -> dict[str, Any]:
    """Calls without pages, with them, and after them."""
    within = aiohttp.ClientTimeout(total=HANG_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=within) as http:
        traffic = Traffic(http, gateway, options.open, 7)
        await traffic.open_all()
        calling = asyncio.Event()
        calls = asyncio.create_task(traffic.run(options.rate, calling))
        results: dict[str, Any] = {"before": await look(traffic, pid, options.seconds / 2)}
        print(json.dumps(results), flush=True)
        stopping = asyncio.Event()
        pages = [Page(pages_url, NAMES[number % len(NAMES)]) for number in range(options.pages)]
        opened = [asyncio.create_task(page.run(http, stopping)) for page in pages]
        drawn = asyncio.gather(*(page.drawn.wait() for page in pages))
        await asyncio.wait([drawn, *opened], timeout=OPENED_S, return_when=asyncio.FIRST_COMPLETED)
        if not drawn.done():
            raise RuntimeError(f"not all pages opened: {[task.exception() for task in opened if task.done()][:1]}")
        for page in pages:
            page.parts_s.clear()
        results["open"] = await look(traffic, pid, options.seconds)
        print(json.dumps(results["open"]), flush=True)
        stopping.set()
        await asyncio.gather(*opened)
        await asyncio.sleep(CLOSED_S)
        # Streamlit looks at the sessions that it keeps when another one comes or goes.
        last, leaving = Page(pages_url, ""), asyncio.Event()
        opened = [asyncio.create_task(last.run(http, leaving))]
        await asyncio.wait_for(last.drawn.wait(), OPENED_S)
        leaving.set()
        await asyncio.gather(*opened)
        results["closed"] = await look(traffic, pid, options.seconds / 2)
        calling.set()
        await calls
        return {
            "failed": dict(traffic.failed),
            "errors": sorted({error for page in pages for error in page.errors}),
            "drawn": sum(page.n_drawn for page in pages),
            "whole_page": quantiles([took for page in pages for took in page.whole_s]),
            "live_part": quantiles([took for page in pages for took in page.parts_s]),
            "live_parts_a_s": round(sum(len(page.parts_s) for page in pages) / options.seconds, 1),
            **results,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--open", type=int, default=1000, help="open trajectories")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--rate", type=float, default=5.0, help="calls a second")
    parser.add_argument("--gateways", type=int, default=0)
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, engine(Path(folder)) as url:
        env = {"CLAW_STUDIO_ENGINE": url, "CLAW_STUDIO_GATEWAYS": str(options.gateways)}
        studio = start_studio(Path(folder), env=env)
        try:
            seen = asyncio.run(measure(options, studio.process.pid, studio.gateway_url, studio.url))
        finally:
            code = studio.stop()
    document = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpus": os.cpu_count(), "load_before": round(load, 2), "load_after": round(os.getloadavg()[0], 2)},
        "options": {name: value for name, value in vars(options).items() if name != "no_write"},
        **seen,
    }
    print(json.dumps(document, indent=1))
    if not options.no_write:
        RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if code or seen["failed"] or seen["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
