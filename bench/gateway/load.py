"""Load for gateway benchmarks: an instant upstream and a closed-loop driver, both with minimal overhead.

python bench/gateway/load.py upstream PORT     # answers every POST at once, with ids and log-probs; streams if asked
python bench/gateway/load.py drive URL CONNECTIONS SECONDS KEY SIZE [stream|growing]   # prints one line of JSON

By default every call sends the same body. With ``growing``, each trajectory is a conversation of its own: every call
holds the messages before it, the answers among them, and the answer's prompt ids continue those of the call before.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Size:
    """One kind of call."""

    request_bytes: int
    n_messages: int
    n_prompt: int
    n_response: int


SIZES = {
    "small": Size(request_bytes=6_000, n_messages=5, n_prompt=500, n_response=50),
    "agentic": Size(request_bytes=60_000, n_messages=80, n_prompt=15_000, n_response=300),
}
"""Agentic: 40 turns of an agent and its tools."""
TRAJECTORY = b"TRAJECTORY-NAMED"
"""Placeholder in a URL and in messages: replaced by a new name of the same length every few calls of a connection."""
CALLS_OF_ONE = 20
CHUNKED_END = b"0\r\n\r\n"
GROWING_TOKEN = "at "
TURN = b"/turn-"
"""Before the number of the turn, two digits, in the last message of a growing conversation."""


@dataclass(frozen=True)
class Growth:
    """A growing conversation: turns ``first`` to ``last``. The turn in the middle has the size of ``SIZES``."""

    first: int
    last: int
    message_bytes: int
    tokens_per_turn: int


GROWTHS = {
    "small": Growth(first=0, last=9, message_bytes=740, tokens_per_turn=90),
    "agentic": Growth(first=30, last=49, message_bytes=480, tokens_per_turn=370),
}


def _choice(size: Size, **content: Any) -> dict[str, Any]:
    """One choice with ids and log-probs, in the shape of the whole answer or of a chunk."""
    logprob = {"token": "word ", "logprob": -0.123456, "bytes": [119, 111], "top_logprobs": []}
    ids = list(range(2000, 2000 + size.n_response))
    return {"index": 0, **content, "token_ids": ids, "logprobs": {"content": [logprob] * size.n_response}}


def answer_body(size: Size) -> bytes:
    """What vLLM says when asked for ids and log-probs."""
    message = {"role": "assistant", "content": "word " * size.n_response}
    return json.dumps(
        {
            "id": "chatcmpl-bench",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "bench",
            "prompt_token_ids": list(range(1000, 1000 + size.n_prompt)),
            "choices": [_choice(size, message=message, finish_reason="stop")],
            "usage": _usage(size),
        }
    ).encode()


def completion_body(size: Size) -> bytes:
    """The same in text completions, for Claw-R1's gateway."""
    logprobs = {"tokens": ["word "] * size.n_response, "token_logprobs": [-0.123456] * size.n_response}
    choice = {"index": 0, "text": "word " * size.n_response, "finish_reason": "stop", "logprobs": logprobs}
    return json.dumps({"id": "cmpl-bench", "model": "bench", "choices": [choice], "usage": _usage(size)}).encode()


def _usage(size: Size) -> dict[str, int]:
    total = size.n_prompt + size.n_response
    return {"prompt_tokens": size.n_prompt, "completion_tokens": size.n_response, "total_tokens": total}


def answer_events(size: Size) -> bytes:
    """The same as vLLM streams it: ids of the prompt first, then a chunk for each token, the usage last."""
    envelope = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "bench"}
    one = Size(0, 0, 0, 1)
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    chunks: list[dict[str, Any]] = [{"prompt_token_ids": list(range(1000, 1000 + size.n_prompt)), "choices": [first]}]
    for number in range(size.n_response):
        ends = "stop" if number == size.n_response - 1 else None
        chunk = _choice(one, delta={"content": "word "}, finish_reason=ends)
        chunks.append({"choices": [{**chunk, "token_ids": [2000 + number]}]})
    chunks.append({"choices": [], "usage": _usage(size)})
    events = [b"data: " + json.dumps({**envelope, **chunk}).encode() for chunk in chunks]
    return b"".join(event + b"\n\n" for event in [*events, b"data: [DONE]"])


def request_body(size: Size, *, stream: bool = False) -> bytes:
    """A chat request: a system prompt, then turns."""
    line = "The quick brown fox jumps over the lazy dog. "
    text = (line * (size.request_bytes // len(line) // size.n_messages + 1))[: size.request_bytes // size.n_messages]
    messages = [{"role": "system", "content": text}]
    while len(messages) < size.n_messages:
        messages.append({"role": "user" if len(messages) % 2 else "assistant", "content": text})
    return json.dumps({"model": "bench", "messages": messages, "temperature": 1.0, "stream": stream}).encode()


def growing_requests(name: str) -> list[bytes]:
    """The request bodies of one conversation, turn by turn, with ``TRAJECTORY`` in its messages."""
    growth, size = GROWTHS[name], SIZES[name]
    text = "The quick brown fox jumps over the lazy dog. " * 20
    placeholder = TRAJECTORY.decode()
    messages = [{"role": "system", "content": text[: growth.message_bytes]}]
    bodies = []
    for turn in range(growth.last + 1):
        head = f"{placeholder}{TURN.decode()}{turn:02d} "
        messages.append({"role": "user", "content": (head + text)[: growth.message_bytes]})
        if turn >= growth.first:
            bodies.append(json.dumps({"model": "bench", "messages": messages, "temperature": 1.0}).encode())
        messages.append({"role": "assistant", "content": GROWING_TOKEN * size.n_response})
    return bodies


def growing_answer(name: str, turn: int) -> bytes:
    """The answer to a turn of a growing conversation: its prompt is the one before, its answer, and an observation."""
    growth, size = GROWTHS[name], SIZES[name]
    n_prompt = growth.tokens_per_turn * (turn + 1)
    ids = [(7919 * number) % 150_000 for number in range(n_prompt + size.n_response)]
    message = {"role": "assistant", "content": GROWING_TOKEN * size.n_response}
    entry = {"token": GROWING_TOKEN, "logprob": -0.123456, "bytes": [97, 116, 32], "top_logprobs": []}
    logprobs = {"content": [entry] * size.n_response}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
    choice["token_ids"] = ids[n_prompt:]
    usage = {"prompt_tokens": n_prompt, "completion_tokens": size.n_response, "total_tokens": len(ids)}
    answer = {"id": "chatcmpl-bench", "object": "chat.completion", "created": 1_700_000_000, "model": "bench"}
    return json.dumps({**answer, "prompt_token_ids": ids[:n_prompt], "choices": [choice], "usage": usage}).encode()


def _response(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def _streamed(events: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n" % (len(events), events) + CHUNKED_END


class Upstream(asyncio.Protocol):
    """HTTP/1.1 with keep-alive: waits for a whole request, answers with constant bytes."""

    whole: ClassVar = {name: _response(answer_body(size)) for name, size in SIZES.items()}
    streamed: ClassVar = {name: _streamed(answer_events(size)) for name, size in SIZES.items()}
    completion: ClassVar = {name: _response(completion_body(size)) for name, size in SIZES.items()}
    growing: ClassVar = {
        (name, turn): _response(growing_answer(name, turn))
        for name, growth in GROWTHS.items()
        for turn in range(growth.first, growth.last + 1)
    }
    models = _response(b'{"object": "list", "data": [{"id": "bench", "object": "model", "owned_by": "vllm"}]}')

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._wanted = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take bytes as they come."""
        self._buffer += data
        while len(self._buffer) >= self._wanted and (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._buffer[:end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            self._wanted = end + 4 + length
            if len(self._buffer) < self._wanted:
                return
            body = bytes(self._buffer[end + 4 : self._wanted])
            del self._buffer[: self._wanted]
            self._wanted = 0
            self._transport.write(self._answer(head, body))

    def _answer(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"get"):
            return self.models
        if (at := body.rfind(TURN)) >= 0:
            turn = int(body[at + len(TURN) : at + len(TURN) + 2])
            return self.growing["small" if turn <= GROWTHS["small"].last else "agentic", turn]
        size = "agentic" if len(body) > 20_000 else "small"
        if b"/v1/completions" in head[:100]:
            return self.completion[size]
        tail = body[-4096:]
        return (self.streamed if b'"stream":true' in tail or b'"stream": true' in tail else self.whole)[size]


class Client(asyncio.Protocol):
    """One connection of the closed loop: the next request leaves when the last answer is in."""

    def __init__(
        self, number: int, requests: list[bytes], until: float, latencies: list[float], ended: asyncio.Future[None]
    ) -> None:
        self._number = number
        self._n_sent = 0
        self._requests = requests
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
        trajectory, call = divmod(self._n_sent, len(self._requests))
        name = b"t%05d%04d%06d" % (int(self._until) % 100_000, self._number, trajectory)
        self._n_sent += 1
        self._transport.write(self._requests[call].replace(TRAJECTORY, name))

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
        elif not self._buffer.endswith(CHUNKED_END):
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


async def drive(
    url: str, connections: int, seconds: float, key: str, size: str, *, stream: bool = False, growing: bool = False
) -> dict[str, Any]:
    """Requests per second, p50 and p99 in milliseconds, errors."""
    parts = urlsplit(url)
    head = (
        f"POST {parts.path}/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: "
    ).encode()
    bodies = growing_requests(size) if growing else [request_body(SIZES[size], stream=stream)] * CALLS_OF_ONE
    requests = [head + b"%d\r\n\r\n" % len(body) + body for body in bodies]
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    started = time.perf_counter()
    clients: list[Client] = []
    endings: list[asyncio.Future[None]] = []
    for number in range(connections):
        ended: asyncio.Future[None] = loop.create_future()
        client = Client(number, requests, started + seconds, latencies, ended)
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
        url, connections, seconds, key, size, *rest = sys.argv[2:]
        measured = drive(
            url, int(connections), float(seconds), key, size, stream="stream" in rest, growing="growing" in rest
        )
        print(json.dumps(uvloop.run(measured)))


if __name__ == "__main__":
    main()
