"""Records what a running engine answers to what the gateway asks, for ``tests/gateway/engines/recorded``.

    python -m tests.real_engines.record http://127.0.0.1:8000/v1 tests/gateway/engines/recorded/vllm.json

The model served should be the one that ships (``core.serving.model.make_model``): small answers, no licence.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx

from core.gateway.engines.flavours import Flavour, by_refusal
from core.gateway.engines.probe import Probe
from core.gateway.served_dialects import add_fields
from core.gateway.transport.connection_pool import ConnectionPool

HELLO = [{"role": "user", "content": "Say hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a place",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
END_OF_TURN = "4082"
"""The id that ends a turn of the model that ships; favoured where an answer is to end by itself."""

CHAT = {"messages": HELLO, "max_tokens": 6, "temperature": 0.7}
COMPLETION = {"prompt": "Once upon", "max_tokens": 4, "temperature": 0.7}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat", CHAT),
    "chat_ended": ("chat", {**CHAT, "max_tokens": 60, "logit_bias": {END_OF_TURN: 1}}),
    "chat_n": ("chat", {**CHAT, "n": 2}),
    "chat_stop_word": ("chat", {**CHAT, "max_tokens": 60, "stop": ["er"]}),
    "chat_tools": ("chat", {**CHAT, "max_tokens": 60, "tools": TOOLS, "tool_choice": "required"}),
    "completions": ("completions", COMPLETION),
    "completions_n": ("completions", {**COMPLETION, "n": 2}),
    "chat_stream": ("chat", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    "chat_tools_stream": ("chat", {**CHAT, "stream": True, "tools": TOOLS, "tool_choice": "required"}),
    "completions_stream": ("completions", {**COMPLETION, "stream": True}),
}
PATHS = {"chat": "chat/completions", "completions": "completions"}


async def look(base_url: str) -> tuple[Probe, dict[str, Any]]:
    """What the gateway's own probe finds out."""
    connections, findings = ConnectionPool(), dict[str, Any]()
    probe = Probe("recorded", connections, time.time)
    await probe.run(base_url, {}, findings)
    return probe, findings


def ask(client: httpx.Client, flavour: Flavour, model: str, dialect: str, body: dict[str, Any]) -> dict[str, Any]:
    """One exchange, asked like the gateway asks: for everything, then for less."""
    refusals: list[dict[str, Any]] = []
    for level in flavour.field_sets(dialect):
        request, added = add_fields({"model": model, **body}, level)
        response = client.post(PATHS[dialect], json=request)
        refused = response.status_code in (400, 422)
        if refused and added:
            refusals.append({"added": added, "status": response.status_code, "response": response.json()})
            continue
        streamed = body.get("stream") and not refused
        recorded = {"stream": response.text} if streamed or response.is_server_error else {"response": response.json()}
        return {
            "dialect": dialect,
            "request": request,
            "refusals": refusals,
            "status": response.status_code,
            **recorded,
        }
    raise AssertionError("the last ask adds nothing")


def by_lines(recording: dict[str, Any]) -> str:
    """JSON with one line for each exchange: a hundred ids need no hundred lines."""
    exchanges = recording.pop("exchanges")
    head = json.dumps(recording, ensure_ascii=False, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in exchanges.items())
    return f'{head},\n "exchanges": {{\n{lines}\n }}\n}}\n'


def main() -> None:
    """Write the recording."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base_url")
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", help="name to ask for, where the engine lists none or several")
    parser.add_argument("--version", help="its version, where it does not tell it")
    arguments = parser.parse_args()
    probe, findings = asyncio.run(look(arguments.base_url))
    model = arguments.model or str((probe.cards or [{}])[0].get("id"))
    flavour = probe.flavour
    # llama.cpp may close a connection after a stream without saying so: each request gets its own.
    fresh = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=arguments.base_url, timeout=300, limits=fresh) as client:
        refused = client.post(PATHS["chat"], json={"model": model, **CHAT, "return_token_ids": True})
        told_by_refusal = by_refusal(refused.json())
        flavour = told_by_refusal or flavour
        exchanges = {name: ask(client, flavour, model, *request) for name, request in REQUESTS.items()}
    recording = {
        "flavour": flavour.name,
        "version": probe.version or arguments.version,
        "models": probe.cards,
        "findings": {name: value for name, value in findings.items() if name != "models"},
        **({"refusal": refused.json()} if told_by_refusal is not None else {}),
        "exchanges": exchanges,
    }
    arguments.file.write_text(by_lines(recording), encoding="utf-8")


if __name__ == "__main__":
    main()
