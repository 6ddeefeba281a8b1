"""A real OpenAI-compatible server whose answers a test writes itself, to show the gateway odd shapes and faults."""

from __future__ import annotations

import asyncio
import inspect
import threading
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.gateway.http.server import GatewayServer


def chat_answer(
    content: str | None = "hello",
    *,
    tool_calls: list[dict[str, Any]] | None = None,
    response_ids: tuple[int, ...] = (7, 8, 9),
    prompt_ids: tuple[int, ...] = (1, 2, 3, 4),
    n: int = 1,
    **message: Any,
) -> dict[str, Any]:
    """What vLLM answers when asked for everything."""
    full = {"role": "assistant", "content": content, "tool_calls": tool_calls, **message}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "policy",
        "prompt_token_ids": list(prompt_ids),
        "choices": [
            {
                "index": index,
                "message": {key: value for key, value in full.items() if value is not None or key == "content"},
                "finish_reason": "tool_calls" if tool_calls else "stop",
                "token_ids": list(response_ids),
                "logprobs": {
                    "content": [
                        {"token": f"t{token}", "logprob": -0.5, "bytes": None, "top_logprobs": []}
                        for token in response_ids
                    ]
                },
            }
            for index in range(n)
        ],
        "usage": {
            "prompt_tokens": len(prompt_ids),
            "completion_tokens": n * len(response_ids),
            "total_tokens": len(prompt_ids) + n * len(response_ids),
        },
    }


def completions_answer(text: str = "hello", response_ids: tuple[int, ...] = (7, 8)) -> dict[str, Any]:
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "policy",
        "choices": [
            {
                "index": 0,
                "text": text,
                "finish_reason": "stop",
                "token_ids": list(response_ids),
                "prompt_token_ids": [1, 2],
                "logprobs": {"tokens": ["a"] * len(response_ids), "token_logprobs": [-0.1] * len(response_ids)},
            }
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": len(response_ids), "total_tokens": 4},
    }


@dataclass
class Seen:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Upstream:
    """Set ``reply`` to what it says: a dict, a Response, or a function of the request. ``answer`` does it all.

    It answers after ``delay_s``, or, where a test has to act in between, once ``gate`` is set.
    """

    reply: Any = field(default_factory=chat_answer)
    models: list[str] = field(default_factory=lambda: ["policy"])
    delay_s: float = 0.0
    gate: threading.Event | None = None
    seen: list[Seen] = field(default_factory=list)
    base_url: str = ""
    port: int = 0
    answer: Any = None
    version: str | None = None
    ollama: str | None = None
    owner: str = "vllm"
    _server: GatewayServer | None = None

    def start(self) -> Upstream:
        app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/version", self._version),
                Route("/api/version", self._ollama_version),
                Route("/v1/{path:path}", self.answer or self._answer, methods=["POST"]),
            ]
        )
        self._server = GatewayServer(app, port=self.port)
        self.base_url = f"http://127.0.0.1:{self._server.start()}/v1"
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(1.0)

    def reset(self) -> None:
        fresh = Upstream()
        self.reply, self.models, self.delay_s, self.gate = fresh.reply, fresh.models, fresh.delay_s, fresh.gate
        # A late request of an earlier test must not count for this one.
        self.seen = []

    @property
    def last(self) -> Seen:
        return self.seen[-1]

    async def _models(self, request: Request) -> Response:
        data = [{"id": name, "object": "model", "created": 0, "owned_by": self.owner} for name in self.models]
        return JSONResponse({"object": "list", "data": data})

    async def _version(self, request: Request) -> Response:
        version = {"version": self.version} if self.version is not None else {"detail": "Not Found"}
        return JSONResponse(version, 200 if self.version is not None else 404)

    async def _ollama_version(self, request: Request) -> Response:
        version = {"version": self.ollama} if self.ollama is not None else {"detail": "Not Found"}
        return JSONResponse(version, 200 if self.ollama is not None else 404)

    async def _answer(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        self.seen.append(Seen(request.path_params["path"], dict(request.headers), body))
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.gate is not None:
            assert await asyncio.to_thread(self.gate.wait, 60)
        reply = self.reply(self.last) if inspect.isfunction(self.reply) else self.reply
        return reply if isinstance(reply, Response) else JSONResponse(reply)
