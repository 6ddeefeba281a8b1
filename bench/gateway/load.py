"""Load for gateway benchmarks: an instant upstream and a closed-loop driver, both as thin as Python gets.

python bench/gateway/load.py upstream PORT        # answers every POST at once: 500 + 50 tokens with ids
python bench/gateway/load.py drive URL CONNECTIONS SECONDS KEY [stream]   # prints one line of JSON
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

N_PROMPT = 500
N_RESPONSE = 50
REQUEST_BYTES = 6_000


def answer_body() -> bytes:
    """What vLLM says when asked for ids and log-probs."""
    return json.dumps(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "bench",
            "prompt_token_ids": list(range(1000, 1000 + N_PROMPT)),
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "word " * N_RESPONSE},
                    "finish_reason": "stop",
                    "token_ids": list(range(2000, 2000 + N_RESPONSE)),
                    "logprobs": {
                        "content": [
                            {"token": "word ", "logprob": -0.123456, "bytes": [119, 111], "top_logprobs": []}
                            for _ in range(N_RESPONSE)
                        ]
                    },
                }
            ],
            "usage": {
                "prompt_tokens": N_PROMPT,
                "completion_tokens": N_RESPONSE,
                "total_tokens": N_PROMPT + N_RESPONSE,
            },
        }
    ).encode()


def request_body(*, stream: bool = False) -> bytes:
    """A chat request of about ``REQUEST_BYTES``: a system prompt, a few turns."""
    turn = "The quick brown fox jumps over the lazy dog. " * 10
    messages: list[dict[str, Any]] = [{"role": "system", "content": turn * 4}]
    while len(json.dumps(messages)) < REQUEST_BYTES - 200:
        messages.append({"role": "user" if len(messages) % 2 else "assistant", "content": turn})
    return json.dumps({"model": "bench", "messages": messages, "temperature": 1.0, "stream": stream}).encode()


def _response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


class Upstream(asyncio.Protocol):
    """HTTP/1.1 with keep-alive: waits for a whole request, answers with constant bytes."""

    chat = _response(answer_body())
    models = _response(b'{"object": "list", "data": [{"id": "bench", "object": "model", "owned_by": "vllm"}]}')

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take bytes as they come."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            self._transport.write(self.models if head.startswith(b"get") else self.chat)


class Client(asyncio.Protocol):
    """One connection of the closed loop: the next request leaves when the last answer is in."""

    def __init__(self, request: bytes, until: float, latencies: list[float], ended: asyncio.Future[None]) -> None:
        self._request = request
        self._until = until
        self._latencies = latencies
        self._ended = ended
        self._buffer = bytearray()
        self.errors = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if not self._ended.done():
            self.errors += time.perf_counter() < self._until
            self._ended.set_result(None)

    def _send(self) -> None:
        self._started = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Take bytes as they come."""
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end]).lower()
        at = head.find(b"content-length:")
        if at >= 0:
            length = int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self._buffer) < end + 4 + length:
                return
        elif not self._buffer.endswith(b"0\r\n\r\n"):
            return
        if not head.startswith(b"http/1.1 200"):
            self.errors += 1
        now = time.perf_counter()
        self._latencies.append(now - self._started)
        self._buffer.clear()
        if now < self._until:
            self._send()
        else:
            self._transport.close()


async def drive(url: str, connections: int, seconds: float, key: str, *, stream: bool = False) -> dict[str, Any]:
    """Requests per second, p50 and p99 in milliseconds, errors."""
    parts = urlsplit(url)
    body = request_body(stream=stream)
    request = (
        f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    started = time.perf_counter()
    clients: list[Client] = []
    endings: list[asyncio.Future[None]] = []
    for _ in range(connections):
        ended: asyncio.Future[None] = loop.create_future()
        client = Client(request, started + seconds, latencies, ended)
        await loop.create_connection(lambda client=client: client, parts.hostname, parts.port)
        clients.append(client)
        endings.append(ended)
    await asyncio.wait(endings, timeout=seconds + 30)
    elapsed = time.perf_counter() - started
    ordered = sorted(latencies)
    return {
        "connections": connections,
        "requests": len(ordered),
        "requests_per_s": round(len(ordered) / elapsed, 1),
        "p50_ms": round(ordered[len(ordered) // 2] * 1e3, 3) if ordered else None,
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1e3, 3) if ordered else None,
        "errors": sum(client.errors for client in clients),
    }


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    print(json.dumps({"ready": True, "port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


def main() -> None:
    import uvloop

    if sys.argv[1] == "upstream":
        uvloop.run(serve(int(sys.argv[2])))
    else:
        url, connections, seconds, key, *rest = sys.argv[2:]
        measured = drive(url, int(connections), float(seconds), key, stream=rest == ["stream"])
        print(json.dumps(uvloop.run(measured)))


if __name__ == "__main__":
    main()
