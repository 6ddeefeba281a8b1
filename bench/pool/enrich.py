"""Adds seeded messages, tools, models, labels, tags and notes to a pool of ``generate.py``.

    python bench/pool/enrich.py [--trajectories 20000] [--steps 50] [--seed 0]

``generate.py`` sends tokens alone, since hashing every message of every growing prompt takes hours at a million steps.
Here the same rows that ingest would write are written at once: an answer and a tool's result for each step, some
1.7 kB of words, 1.7 GB in all. State and findings are then derived as an update of the program would (``rebuild``).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import orjson
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.pool.generate import CACHE, NEW_TOKENS, ensure, size_of  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.types import View  # noqa: E402

TOOLS = ("bash", "read_file", "write_file", "search", "browser_open", "browser_click", "python", "submit")
MODELS = ("policy-8b", "policy-8b-sft", "judge-32b")
CHUNK = 50_000
N_WORDS, N_PHRASES = 20_000, 50_000


def phrases(rng: np.random.Generator) -> np.ndarray:
    """Some ten words each, frequent ones more often, as texts have them."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = np.array(["".join(rng.choice(letters[:20], size=rng.integers(2, 10))) for _ in range(N_WORDS)])
    rank = np.minimum(rng.zipf(1.3, size=(N_PHRASES, 10)) - 1, N_WORDS - 1)
    return np.array([" ".join(words[row]) for row in rank])


def rare_word(number: int) -> str:
    """A word that one message in some thousands holds."""
    return f"needle{number % 250:03d}"


def bodies(
    first: int, n: int, said: np.ndarray, rng: np.random.Generator
) -> tuple[list[bytes], list[bytes], list[str]]:
    """Tool results and answers of ``n`` steps from ``first`` as JSON, and the tool each answer calls."""
    results, answers = [], []
    tools = rng.choice(TOOLS, size=n).tolist()
    long, short = rng.integers(0, N_PHRASES, (n, 20)), rng.integers(0, N_PHRASES, (n, 4))
    failed, marked = rng.random(n) < 0.04, rng.random(n) < 0.05
    for i in range(n):
        text = "\n".join(said[long[i]])
        if failed[i]:
            text = f"Error: {text}"
        if marked[i]:
            text += f" {rare_word(first + i)}"
        results.append(orjson.dumps({"role": "tool", "tool_call_id": f"call_{first + i}", "content": text}))
        arguments = orjson.dumps({"command": said[short[i][0]]}).decode()
        call = {
            "id": f"call_{first + i + 1}",
            "type": "function",
            "function": {"name": tools[i], "arguments": arguments},
        }
        content = " ".join(said[short[i][1:]])
        answers.append(orjson.dumps({"role": "assistant", "content": content, "tool_calls": [call]}))
    return results, answers, tools


def enrich(path: Path, seed: int) -> dict[str, Any]:
    """Write messages and variety into the pool at ``path``; returns seconds by part."""
    rng = np.random.default_rng(seed)
    began = time.perf_counter()
    connection = duckdb.connect(str(path), config={"threads": 2, "memory_limit": "4GB"})
    n = connection.execute("SELECT count(*) FROM steps").fetchall()[0][0]
    phrase_texts = phrases(rng)
    connection.execute("CREATE TEMP TABLE told (step_id BIGINT, tool VARCHAR, preview VARCHAR)")
    connection.execute("DELETE FROM step_messages")
    for first in range(1, n + 1, CHUNK):
        ids = np.arange(first, min(first + CHUNK, n + 1))
        results, answers, tools = bodies(first, len(ids), phrase_texts, rng)
        numbers = np.concatenate([2 * ids, 2 * ids + 1])
        texts = pa.array(results + answers, pa.binary()).cast(pa.string())
        messages = pa.table({"message_id": numbers, "body": texts})
        findings = pa.table({"step_id": ids, "tool": tools})
        connection.register("new_messages", messages)
        connection.register("new_told", findings)
        connection.execute(
            "INSERT INTO messages SELECT message_id, md5(body)::UUID, body FROM new_messages ORDER BY ALL"
        )
        connection.execute(
            "INSERT INTO told SELECT t.step_id, t.tool, left(json_extract_string(m.body, '$.content'), 200)"
            " FROM new_told t JOIN new_messages m ON m.message_id = 2 * t.step_id + 1"
        )
    connection.execute(
        "INSERT INTO step_messages SELECT step_id, trajectory_id, [2 * step_id], 2 * step_id + 1, NULL FROM steps"
        " ORDER BY step_id"
    )
    connection.execute(
        f"""CREATE TABLE varied AS SELECT f.* REPLACE (
            [told.tool] AS tool_names, told.preview AS preview,
            {list(MODELS)}[1 + (hash(f.trajectory_id) % 3)::INTEGER] AS model,
            ['blackbox', 'blackbox', 'service', 'import'][1 + (hash(f.trajectory_id, 1) % 4)::INTEGER] AS source,
            CASE WHEN hash(f.step_id, 2) % 100 < 6 THEN 'realigned' ELSE f.transition END AS transition,
            CASE WHEN hash(f.step_id, 3) % 100 < 3 THEN 'error' ELSE f.status END AS status
        ) FROM steps f JOIN told USING (step_id) ORDER BY step_id"""
    )
    connection.execute("DELETE FROM steps")
    connection.execute("INSERT INTO steps SELECT * FROM varied ORDER BY step_id")
    connection.execute("DROP TABLE varied")
    connection.close()
    times = {"messages_s": time.perf_counter() - began}
    print(times, flush=True)
    pool = Pool.open(path, memory="4GB")
    began = time.perf_counter()
    pool.integrity.rebuild_state()
    times["rebuild_s"] = time.perf_counter() - began
    began = time.perf_counter()
    labels: list[tuple[str, str, Any]] = [
        ("latency_s < 0.12", "quality", "good"),
        ("latency_s > 2.5", "quality", "bad"),
        ("list_contains(findings, 'tool_error') AND latency_s < 0.5", "tag", "needs review"),
        ("step_index % 10 = 3 AND finish_reason = 'length'", "tag", "cut"),
        ("latency_s BETWEEN 1 AND 1.02", "note", "Odd."),
        ("step_index = 49 AND trajectory_reward > 0.5", "correct", True),
    ]
    for where, kind, value in labels:
        pool.labels.annotate_view(View(where=where), "step", kind, value, author="bench", source="human")
    times["labels_s"] = time.perf_counter() - began
    pool.close()
    return {name: round(took, 1) for name, took in times.items()}


def ensure_rich(n_trajectories: int = 20_000, n_steps: int = 50, seed: int = 0, new_tokens: int = NEW_TOKENS) -> Path:
    """The pool of these sizes with messages, made when it isn't there."""
    path = CACHE / f"rich-{size_of(n_trajectories, n_steps, new_tokens)}-{seed}.duckdb"
    if not path.exists():
        partial = path.with_suffix(".partial")
        for old in CACHE.glob(partial.name + "*"):
            old.unlink()
        shutil.copy(ensure(n_trajectories, n_steps, seed, new_tokens), partial)
        print(enrich(partial, seed), flush=True)
        partial.rename(path)
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=20_000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(ensure_rich(given.trajectories, given.steps, given.seed))
