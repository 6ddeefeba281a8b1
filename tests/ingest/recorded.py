"""Builders of journal records for tests: an agent that talks to an engine in whole token ids."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from core.ingest import Ingest
from core.journal import Journal
from core.pool import Pool
from core.records import call_record
from core.types import Identity

TOOLS = [{"type": "function", "function": {"name": "run", "parameters": {"type": "object", "properties": {}}}}]


def encode(messages: Sequence[dict[str, Any]]) -> list[int]:
    """A template that only ever appends: role and text bytes of each message between marks."""
    ids: list[int] = []
    for message in messages:
        ids += [300, *str(message["role"]).encode(), 301, *answer_ids(message), 302]
    return [*ids, 300, *b"assistant", 301]


def answer_ids(message: dict[str, Any]) -> list[int]:
    calls = message.get("tool_calls")
    return [*str(message.get("content") or "").encode(), *(orjson.dumps(calls) if calls else b"")]


def call(
    uid: str,
    messages: list[dict[str, Any]],
    answer: str | dict[str, Any] | None,
    *,
    trajectory_uid: str | None = None,
    prompt_uid: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    at: float = 1e9,
    ids: bool = True,
    error: dict[str, Any] | None = None,
    http_status: int = 200,
    aborted: bool = False,
    n: int = 1,
    channel: str = "train",
    retry_count: int = 0,
    prompt_ids: list[int] | None = None,
) -> bytes:
    """One captured chat call; with several choices each answer gets its number appended."""
    request: dict[str, Any] = {"model": "m", "messages": messages, "temperature": 0.7}
    if tools is not None:
        request["tools"] = tools
    response = None
    if answer is not None:
        message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        choices = []
        for index in range(n):
            own = message if index == 0 else {**message, "content": f"{message['content']} {index}"}
            choice: dict[str, Any] = {"index": index, "finish_reason": "stop", "message": own}
            if ids:
                choice["token_ids"] = [*answer_ids(own), 302]
                choice["logprobs"] = {
                    "content": [{"token": "", "logprob": -i / 8} for i in range(len(choice["token_ids"]))]
                }
            choices.append(choice)
        response = {"id": f"chatcmpl-{uid}", "choices": choices}
        if ids:
            response["prompt_token_ids"] = prompt_ids if prompt_ids is not None else encode(messages)
    return call_record(
        at=at,
        step_uid=uid,
        started_at=at,
        finished_at=at + 0.5,
        identity=Identity(
            trajectory_uid,
            prompt_uid,
            channel,
            agent="tester",
            identity_source="key" if trajectory_uid else "inferred",
            metadata={"task": {"id": 7}},
        ),
        dialect="chat",
        engine="e",
        engine_kind="openai",
        model="m",
        policy_version=3,
        policy_version_end=4,
        stream=False,
        stream_mode="none",
        client_headers={},
        request=orjson.dumps(request),
        parsed_request=request,
        response=None if response is None else orjson.dumps(response),
        http_status=http_status,
        error=error,
        aborted=aborted,
        retry_count=retry_count,
    )


def rollout(
    name: str, *, turns: int = 4, task: str = "task", known: bool = True, seed: int = 0, at: float = 1e9
) -> Iterator[bytes]:
    """The calls of one well-behaved tool-using agent."""
    rng = random.Random(f"{name}{seed}")
    messages: list[dict[str, Any]] = [{"role": "system", "content": "be good"}, {"role": "user", "content": task}]
    for turn in range(turns):
        answer = f"think {rng.randrange(10**6)}"
        yield call(
            f"{name}-{turn}",
            list(messages),
            answer,
            trajectory_uid=name if known else None,
            tools=TOOLS,
            at=at + turn,
        )
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": f"seen {rng.randrange(10**6)}"},
        ]


class Bench:
    """A journal, a pool and an ingest that is driven by hand."""

    def __init__(self, folder: Path, *, tokenizers: dict[str, Path] | None = None) -> None:
        self.folder = folder
        self._tokenizers = tokenizers
        self.journal = Journal(folder / "journal")
        self.pool = Pool.open(folder / "pool.duckdb", clock=lambda: 1e9)
        self.ingest = self._ingest()

    def _ingest(self) -> Ingest:
        return Ingest(
            self.folder / "journal",
            self.pool,
            wait=self.journal.wait,
            clock=lambda: 1e9,
            tokenizers=self._tokenizers,
        )

    def feed(self, *payloads: bytes) -> None:
        """Journal and take in."""
        for future in [self.journal.append(payload) for payload in payloads]:
            future.result()
        assert self.ingest.catch_up(60)

    def restart(self) -> None:
        """A new process as far as the pool and ingest can tell."""
        self.pool.close()
        self.pool = Pool.open(self.folder / "pool.duckdb", clock=lambda: 1e9)
        self.ingest = self._ingest()

    def close(self) -> None:
        self.journal.close()
        self.pool.close()
