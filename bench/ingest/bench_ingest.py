"""Measures ingest of agentic calls: from journal records on disk to steps in the pool.

    python bench/ingest/bench_ingest.py [--agents 50] [--turns 40] [--repeat 3]

Each agent's first request holds 40 KB of system prompt and tools; every turn adds 1 KB, so that requests are 60 KB on
average, and about 15,000 prompt ids come back as vLLM tells them, with 160 sampled ids and their log-probs. The agents'
calls are interleaved, as they arrive. Times are of one ingest thread from an empty pool. Writes
bench/results/ingest.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import orjson  # noqa: E402

from core.ingest import Ingest  # noqa: E402
from core.journal import Journal  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.records import call_record  # noqa: E402
from core.types import Identity  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "ingest.json"
SYSTEM_CHARS = 24_000
N_TOOLS = 16
TOOL_CHARS = 1_000
TURN_CHARS = 480
CHARS_PER_TOKEN = 4
N_RESPONSE = 160


class Agent:
    """One trajectory that grows by a turn at each call."""

    def __init__(self, number: int, tools: list[dict[str, Any]], system: str) -> None:
        self.random = random.Random(number)
        self.uid = f"agent-{number}"
        self.tools = tools
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Task {number // 8}: " + self.text(TURN_CHARS)},
        ]
        self.ids = [self.random.randrange(150_000) for _ in range((len(system) + N_TOOLS * TOOL_CHARS) // 4)]
        self.turn = 0

    def text(self, n: int) -> str:
        """Words of about n characters."""
        return " ".join(f"{self.random.randrange(10**7):x}" for _ in range(n // 6))

    def record(self, at: float) -> bytes:
        """The next call as the gateway writes it."""
        request = {"model": "bench", "messages": self.messages, "tools": self.tools, "temperature": 1.0}
        response_ids = [self.random.randrange(150_000) for _ in range(N_RESPONSE)]
        call = {
            "id": f"call-{self.turn}",
            "type": "function",
            "function": {"name": "tool_3", "arguments": json.dumps({"path": self.text(TURN_CHARS // 2)})},
        }
        message = {"role": "assistant", "content": self.text(TURN_CHARS // 2), "tool_calls": [call]}
        entries = [
            {"token": "word ", "logprob": -self.random.random(), "bytes": [119, 111, 114, 100], "top_logprobs": []}
            for _ in response_ids
        ]
        response = {
            "id": f"chatcmpl-{self.uid}-{self.turn}",
            "object": "chat.completion",
            "prompt_token_ids": self.ids,
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "tool_calls",
                    "token_ids": response_ids,
                    "logprobs": {"content": entries},
                }
            ],
            "usage": {"prompt_tokens": len(self.ids), "completion_tokens": N_RESPONSE},
        }
        body = orjson.dumps(request)
        made = call_record(
            at=at,
            step_uid=f"{self.uid}.{self.turn}",
            started_at=at - 0.5,
            finished_at=at,
            identity=Identity(
                trajectory_uid=self.uid,
                prompt_uid=f"task-{int(self.uid[6:]) // 8}",
                channel="train",
                source="blackbox",
                agent="bench",
                identity_source="path",
                metadata={},
            ),
            dialect="chat",
            engine="bench",
            engine_kind="openai",
            model="bench",
            policy_version=1,
            policy_version_end=1,
            stream=False,
            stream_mode="none",
            client_headers={},
            request=body,
            parsed_request=request,
            response=orjson.dumps(response),
            http_status=200,
        )
        result = {"role": "tool", "tool_call_id": call["id"], "content": self.text(TURN_CHARS)}
        self.messages = [*self.messages, message, result]
        self.ids = [*self.ids, *response_ids]
        self.ids += [self.random.randrange(150_000) for _ in range(TURN_CHARS // CHARS_PER_TOKEN)]
        self.turn += 1
        return made


def write_journal(directory: Path, n_agents: int, n_turns: int) -> dict[str, Any]:
    """All agents' calls, turn by turn."""
    writer = random.Random(0)
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{i}",
                "description": " ".join(f"{writer.randrange(10**7):x}" for _ in range(TOOL_CHARS // 6)),
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
            },
        }
        for i in range(N_TOOLS)
    ]
    system = " ".join(f"{writer.randrange(10**7):x}" for _ in range(SYSTEM_CHARS // 6))
    agents = [Agent(number, tools, system) for number in range(n_agents)]
    journal = Journal(directory)
    n_bytes = 0
    futures = []
    for turn in range(n_turns):
        for agent in agents:
            payload = agent.record(1_790_000_000.0 + turn)
            n_bytes += len(payload)
            futures.append(journal.append(payload))
        for future in futures:
            future.result()
        futures.clear()
    journal.close()
    return {"n_calls": n_agents * n_turns, "record_bytes": n_bytes // (n_agents * n_turns)}


def ingest(directory: Path, pool_path: Path) -> float:
    """Seconds until the pool has everything."""
    pool = Pool.open(pool_path)
    thread = Ingest(directory, pool, wait=lambda _: False, clock=time.time)
    began = time.perf_counter()
    while thread.run_once():
        pass
    took = time.perf_counter() - began
    pool.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=50)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="claw-bench-"))
    try:
        load_before = os.getloadavg()[0]
        written = write_journal(work / "journal", arguments.agents, arguments.turns)
        seconds = [ingest(work / "journal", work / f"pool-{i}.duckdb") for i in range(arguments.repeat)]
        best = min(seconds)
        result = {
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": {"cpus": os.cpu_count(), "system": platform.system(), "load_before": round(load_before, 2)},
            "versions": {name: version(name) for name in ("duckdb", "pyarrow", "numpy", "orjson")},
            **written,
            "agents": arguments.agents,
            "turns": arguments.turns,
            "seconds": [round(s, 3) for s in seconds],
            "calls_per_s": round(written["n_calls"] / best, 1),
            "mb_per_s": round(written["n_calls"] * written["record_bytes"] / best / 1e6, 1),
            "journal_bytes": sum(f.stat().st_size for f in (work / "journal").rglob("*") if f.is_file()),
            "pool_bytes": (work / "pool-0.duckdb").stat().st_size,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
        print(json.dumps(result, indent=2))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
