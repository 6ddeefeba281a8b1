"""Compares the pool with its peers: bytes on disk for the same calls, and lists of the same steps.

    python bench/pool/bench_disk.py [--trajectories 40] [--steps 50] [--listed 100000]

The calls are chat calls of tool-using agents whose contexts grow to 30,000 tokens, with token ids and log-probs as
vLLM tells them. They go through the journal and the ingest here, into rllm-model-gateway's SQLite store by its own
code (``.cache/peers-rllm``, see bench/gateway), and into one JSON line each. Claw-R1's DataPool is read from its
repository and listed in memory; only Ray's decorator and verl's base class are left out. What isn't here is skipped.
Adds to bench/results/pool.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import orjson  # noqa: E402

from bench.pool.bench_pool import RESULTS, Bench  # noqa: E402
from bench.tree.common import published  # noqa: E402
from core.ingest import Ingest  # noqa: E402
from core.journal import Journal  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.records import call_record, complete_record  # noqa: E402
from core.types import Identity, Step, View  # noqa: E402

RLLM = ROOT / ".cache" / "peers-rllm" / "bin" / "python"
CLAW_R1 = ("AgentR1+Claw-R1", "HEAD", "claw_r1/data_pool/data_pool.py")
CLAW_R1_MODEL = ("AgentR1+Claw-R1", "HEAD", "claw_r1/data_pool/data_model.py")
TASK, TOLD, SAID = 6000, 380, 100
"""Tokens of the first prompt (instructions, tools, task), of a tool's result, and of an answer."""

_RLLM_CODE = """
import asyncio, json, sys, time
from rllm_model_gateway.data_process import build_trace_record
from rllm_model_gateway.store.sqlite_store import SqliteTraceStore

async def main():
    store, seconds = SqliteTraceStore(sys.argv[2]), 0.0
    for line in open(sys.argv[1]):
        call = json.loads(line)
        trace = build_trace_record(call["trajectory_uid"], call["request"], call["response"], 1000.0)
        began = time.perf_counter()
        await store.store_trace(trace.trace_id, trace.session_id, trace.model_dump())
        seconds += time.perf_counter() - began
    await store.close()
    print(seconds)

asyncio.run(main())
"""


class Words:
    """A token is a word, so texts and ids contain the same. Word frequencies are skewed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = ["".join(self.rng.choices("etaoinshrdlucmfwyp", k=self.rng.randint(1, 8))) for _ in range(30_000)]
        self.weights = [1 / (rank + 10) for rank in range(len(self.names))]
        self.cumulative = [sum(self.weights)]
        total = 0.0
        self.cumulative = [total := total + weight for weight in self.weights]

    def some(self, n: int) -> list[int]:
        """Ids of ``n`` words."""
        return self.rng.choices(range(len(self.names)), cum_weights=self.cumulative, k=n)

    def text(self, ids: list[int]) -> str:
        """What they say."""
        return " ".join(self.names[i] for i in ids)


def calls(words: Words, n_trajectories: int, n_steps: int) -> Iterator[tuple[str, bytes, bytes]]:
    """(trajectory uid, request body, response body), trajectories one after the other."""
    tools = [
        {"type": "function", "function": {"name": name, "description": words.text(words.some(40)), "parameters": {}}}
        for name in ("bash", "edit", "search")
    ]
    for number in range(n_trajectories):
        prompt = words.some(TASK)
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": words.text(prompt[: TASK // 2])},
            {"role": "user", "content": words.text(prompt[TASK // 2 :])},
        ]
        for k in range(n_steps):
            answer = words.some(SAID)
            logprobs = [round(-words.rng.expovariate(3.0), 6) for _ in answer]
            call = {
                "id": f"call_{number}_{k}",
                "type": "function",
                "function": {"name": "bash", "arguments": json.dumps({"command": words.text(answer[:20])})},
            }
            message = {"role": "assistant", "content": words.text(answer[20:]), "tool_calls": [call]}
            pairs = zip(answer, logprobs, strict=True)
            response = {
                "id": f"chatcmpl-{number}-{k}",
                "object": "chat.completion",
                "model": "policy-8b",
                "prompt_token_ids": prompt,
                "choices": [
                    {
                        "index": 0,
                        "message": message,
                        "finish_reason": "tool_calls",
                        "token_ids": answer,
                        "logprobs": {"content": [{"token": words.names[i], "logprob": p} for i, p in pairs]},
                    }
                ],
                "usage": {"prompt_tokens": len(prompt), "completion_tokens": SAID},
            }
            request = {"model": "policy-8b", "messages": messages, "tools": tools, "temperature": 1.0}
            yield f"t{number:04d}", orjson.dumps(request), orjson.dumps(response)
            result = words.some(TOLD)
            prompt = [*prompt, *answer, *result]
            messages = [*messages, message, {"role": "tool", "tool_call_id": call["id"], "content": words.text(result)}]


def disk(n_trajectories: int, n_steps: int, folder: Path) -> dict[str, Any]:
    """Bytes and seconds of each store for the same calls."""
    lines = folder / "calls.jsonl"
    journal = Journal(folder / "journal")
    now, n = time.time(), 0
    with lines.open("wb") as file:
        for uid, request, response in calls(Words(0), n_trajectories, n_steps):
            file.write(b'{"trajectory_uid":"%s","request":%s,"response":%s}\n' % (uid.encode(), request, response))
            identity = Identity(uid, f"p{int(uid[1:]) // 8}", identity_source="path")
            record = call_record(
                at=now + n, step_uid=f"s{n}", started_at=now + n, finished_at=now + n + 1, identity=identity,
                dialect="chat", engine="bench", engine_kind="vllm", model="policy-8b", policy_version=1,
                policy_version_end=1, stream=False, stream_mode="none", client_headers={}, request=request,
                parsed_request=orjson.loads(request), response=response, http_status=200,
            )  # fmt: skip
            journal.append(record).result()
            n += 1
    for number in range(n_trajectories):
        journal.append(complete_record(at=now + n, trajectory_uid=f"t{number:04d}", reward=1.0)).result()
    journal_bytes = journal.n_bytes
    path = folder / "pool.duckdb"
    pool = Pool.open(path)
    ingest = Ingest(folder / "journal", pool, wait=lambda s: False, clock=time.time)
    began = time.perf_counter()
    while ingest.run_once():
        pass
    seconds = time.perf_counter() - began
    assert pool.steps.count() == n, ingest.last_error
    whole = pool.steps.get(f"s{n - 1}")
    assert len(whole["prompt_ids"]) == TASK + (n_steps - 1) * (SAID + TOLD)
    pool.close()
    journal.close()
    raw = lines.stat().st_size
    stores: dict[str, Any] = {
        "plain JSON lines": {"bytes": raw},
        "this pool": {"bytes": path.stat().st_size, "ingest_s": round(seconds, 1)},
        "this journal (raw, kept until retention)": {"bytes": journal_bytes},
    }
    if RLLM.exists():
        database = folder / "rllm.db"
        command = [RLLM, "-c", _RLLM_CODE, lines, database]
        completed = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
        stores["rllm-model-gateway 0.1.0, SQLite"] = {
            "bytes": database.stat().st_size,
            "store_s": round(float(completed.stdout), 1),
        }
    for store in stores.values():
        store["share_of_json"] = round(store["bytes"] / raw, 4)
    return {"n_steps": n, "tokens_at_the_end": len(whole["prompt_ids"]), "stores": stores}


def claw_r1() -> tuple[Callable[[], Any], type] | None:
    """Claw-R1's DataPool and Step as published, without Ray around them; None where the repository isn't here."""
    pool_text, model_text = published(CLAW_R1), published(CLAW_R1_MODEL)
    if pool_text is None or model_text is None:
        return None
    shims: dict[str, dict[str, Any]] = {
        "ray": {"remote": lambda made: made},
        "verl": {},
        "verl.base_config": {"BaseConfig": object},
        "claw_r1": {},
        "claw_r1.data_pool": {},
        "claw_r1.data_pool.training_backend": {"TrainingBackend": object},
        "claw_r1.data_pool.data_model": {},
        "claw_r1.data_pool.data_pool": {},
    }
    for name, names in shims.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(names)
    model, pool = sys.modules["claw_r1.data_pool.data_model"], sys.modules["claw_r1.data_pool.data_pool"]
    exec(compile(model_text, "data_model.py", "exec"), vars(model))
    exec(compile(pool_text, "data_pool.py", "exec"), vars(pool))
    return lambda: pool.DataPool(model.DataPoolConfig(), None), model.Step


def listed(n: int, folder: Path) -> dict[str, Any]:
    """A page of 200 of ``n`` small steps, filtered by agent, trajectory and reward, here and there."""
    agents = ("coder", "browser", "shell")
    facts = [
        {
            "trajectory_uid": f"t{i // 50}", "prompt_uid": f"p{i // 400}", "step_index": i % 50,
            "prompt_ids": [1, 2, 3, 4],
            "response_ids": [5, 6], "reward": float(i % 2), "policy_version": i * 10 // n, "is_last": i % 50 == 49,
        }
        for i in range(n)
    ]  # fmt: skip
    pool = Pool.open(folder / "listed.duckdb")
    for first in range(0, n, 20_000):
        pool.steps.append(
            [
                Step(step_uid=f"s{first + k}", created_at=float(first + k), agent=agents[(first + k) % 3], **item)
                for k, item in enumerate(facts[first : first + 20_000])
            ]
        )
    last = n // 50
    queries: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "a page of all": ({}, {}),
        "a page of one agent": ({"agent": "coder"}, {"agent": "coder"}),
        "a page of rewards over 0.5": ({"min_reward": 0.5}, {"reward": [0.5, None]}),
        "one trajectory": ({"trajectory_uid": "t7"}, {"trajectory_uid": "t7"}),
    }
    ours = Bench(10, 0)
    order = "prompt_uid, trajectory_uid, step_index"
    for name, (_, filters) in queries.items():
        ours.run(
            name, lambda r, f=filters: (pool.steps.page(View(f), order=order, limit=200), pool.steps.count(View(f)))
        )
    ours.run(
        "a page of trajectories",
        lambda r: (pool.trajectories.page(limit=100, offset=r.randrange(last)), pool.stats.totals()),
    )
    pool.close()
    results: dict[str, Any] = {"n_steps": n, "this pool": ours.cases}
    peer = claw_r1()
    if peer is not None:
        make, step = peer
        data_pool = make()
        known = {field.name for field in dataclasses.fields(step)}
        for i, item in enumerate(facts):
            known_fields = {key: value for key, value in item.items() if key in known}
            data_pool.submit_step(step(**known_fields, metadata={"agent": agents[i % 3]}))
        theirs = Bench(3, 0)
        for name, (filters, _) in queries.items():
            theirs.run(name, lambda r, f=filters: data_pool.list_steps("train", limit=200, **f))
        theirs.run(
            "a page of trajectories",
            lambda r: data_pool.list_trajectories("train", limit=100, offset=r.randrange(last)),
        )
        results["Claw-R1 DataPool, in memory"] = theirs.cases
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=40)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--listed", type=int, default=100_000)
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    cache = ROOT / ".cache" / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        results["disk"] = disk(given.trajectories, given.steps, Path(folder))
        print(json.dumps(results["disk"], indent=2), flush=True)
        results["lists"] = listed(given.listed, Path(folder))
    results["peers_measured_at"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
