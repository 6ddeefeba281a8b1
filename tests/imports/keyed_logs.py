"""A log of each format with keys where its program, or who fed it, may have left some, and said in the conversation."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .test_formats import CHAT, DATA, TOOLS
from .test_malformed import CLAWGYM_CALL, CLAWGYM_LOG, LANGFUSE, RECORDS, SLIME, STEP

KEYS = {
    name: f"canary-{name}-4f0e8a1b2c3d"
    for name in (
        "litellm", "langfuse", "messages", "slime", "clawgym", "clawgym-log", "rllm", "parquet", "steps", "cookie",
    )
}  # fmt: skip


def headers(key: str) -> dict[str, str]:
    cookie = f"theme=dark; session={KEYS['cookie']}; Path=/"
    return {"Authorization": f"Bearer {key}", "cookie": cookie, "content-type": "application/json"}


def said(key: str) -> list[dict[str, Any]]:
    """An agent that prints its environment, and something of a header that is no secret."""
    return [{"role": "user", "content": f"KEY={key} COOKIE={KEYS['cookie']} as application/json"}]


def logs_with_keys(folder: Path) -> list[Path]:
    """One file of each format. Some keys stand in fields that the format imports, some in what it leaves behind."""
    key = KEYS
    log = {**RECORDS["litellm"], "session_id": "canary-litellm", "messages": said(key["litellm"])}
    log["model_parameters"] = {"temperature": 0.5, "extra_headers": headers(key["litellm"])}
    log |= {"hidden_params": {"api_key": key["litellm"]}, "metadata": {"user_api_key_hash": key["litellm"]}}
    traced = {**LANGFUSE, "traceId": "canary-langfuse", "input": said(key["langfuse"])}
    traced["metadata"] = {"requester": {"headers": headers(key["langfuse"])}}
    traced["modelParameters"] = json.dumps({"temperature": 0.5, "api_key": key["langfuse"]})
    chat = {"messages": [*said(key["messages"]), CHAT[4]], "trajectory_uid": "canary-messages"}
    chat |= {"headers": headers(key["messages"]), "tools": [*TOOLS, {"type": "mcp", "authorization": key["messages"]}]}
    sample = {**SLIME, "metadata": {"env": {"api_key": key["slime"], "cookie": KEYS["cookie"]}, "a": key["slime"]}}
    call = {**CLAWGYM_CALL, "session_id": "canary-clawgym", "messages": said(key["clawgym"])}
    call |= {"headers": headers(key["clawgym"]), "next_state": {"role": "tool", "content": f"KEY={key['clawgym']}"}}
    rollout = {**CLAWGYM_LOG, "session_id": "canary-clawgym-log", "env": headers(key["clawgym-log"])}
    rollout["raw_prompts"] = {"user_prompt": said(key["clawgym-log"])[0]["content"]}
    step = {**STEP, "trajectory_uid": "canary-steps", "messages": said(key["steps"])}
    step["metadata"] = {"headers": headers(key["steps"])}
    files = {
        "litellm": log, "langfuse": traced, "messages": chat, "slime": sample, "clawgym": call, "clawgym-log": rollout,
        "steps": step,
    }  # fmt: skip
    paths = []
    for name, record in files.items():
        paths.append(folder / f"{name}.jsonl")
        paths[-1].write_text(json.dumps(record) + "\n")
    return [*paths, _rllm(folder / "rllm.db"), _parquet(folder / "steps.parquet")]


def _rllm(path: Path) -> Path:
    path.write_bytes((DATA / "rllm.db").read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        for trace, data in connection.execute("SELECT trace_id, data FROM traces").fetchall():
            record = json.loads(data)
            record["raw_request"] |= {"api_key": KEYS["rllm"], "extra_headers": headers(KEYS["rllm"])}
            record["messages"] = said(KEYS["rllm"])
            record["metadata"] = {**(record.get("metadata") or {}), "headers": headers(KEYS["rllm"])}
            connection.execute("UPDATE traces SET data = ? WHERE trace_id = ?", (json.dumps(record), trace))
        connection.commit()
    return path


def _parquet(path: Path) -> Path:
    row = {
        "step_uid": "canary-parquet-0", "trajectory_uid": "canary-parquet", "prompt_uid": "p", "step_index": 0,
        "prompt_ids": [1, 2], "response_ids": [3], "response_logprobs": [-0.5], "token_source": "engine",
        "trajectory_reward": 1.0, "is_last": True, "messages": json.dumps(said(KEYS["parquet"])),
        "response_message": json.dumps(CHAT[4]),
        "sampling": json.dumps({"temperature": 1.0, "extra_headers": headers(KEYS["parquet"])}),
        "metadata": json.dumps({"litellm": {"user_api_key": KEYS["parquet"]}}),
    }  # fmt: skip
    pq.write_table(pa.Table.from_pylist([row]), path)
    return path
