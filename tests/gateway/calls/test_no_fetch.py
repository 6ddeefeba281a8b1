"""Addresses in a body are data: the service asks none of them, in no dialect and for no provider.

The reference is the interpreter itself, whose audit events tell every name that is looked up and every connection, and
a server of our own that nobody may have called.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.upstream import chat_answer

CANARY = "images-canary.test"
LOOKED_UP: list[str] = []
OPENED: list[str] = []


def hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.getaddrinfo", "socket.gethostbyname") and CANARY in str(arguments[0]):
        LOOKED_UP.append(str(arguments[0]))
    elif event == "open" and "canary-file" in str(arguments[0]):
        OPENED.append(str(arguments[0]))


@pytest.fixture(scope="module", autouse=True)
def heard() -> None:
    sys.addaudithook(hear)


class Listener:
    """A server that counts who comes."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.n_calls = 0
        self.address = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.n_calls += 1
            connection.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listening = Listener()
    yield listening
    listening.socket.close()


def addresses(listener: Listener, planted: str) -> list[str]:
    return [
        f"http://{CANARY}/x.png", f"https://{CANARY}/x.pdf", f"{listener.address}/x.png", f"file://{planted}", planted,
        f"gs://{CANARY}/x.png", f"ftp://{CANARY}/x.png",
    ]  # fmt: skip


def detours(url: str) -> dict[str, Any]:
    """Fields by which a library or a server may be made to go elsewhere."""
    return {
        "api_base": url, "base_url": url, "api_version": url, "webhook": url, "callback_url": url, "callbacks": [url],
        "success_callback": [url], "metadata": {"callback_url": url, "user_id": url}, "proxy": url,
        "litellm_params": {"api_base": url}, "fallbacks": [{"model": "openai/x", "api_base": url}],
        "model_list": [{"litellm_params": {"api_base": url}}], "extra_headers": {"host": CANARY}, "azure_endpoint": url,
    }  # fmt: skip


def bodies(url: str) -> dict[str, dict[str, Any]]:
    parts = [
        {"type": "text", "text": url},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "file", "file": {"file_id": url, "file_data": url, "format": "application/pdf"}},
        {"type": "video_url", "video_url": {"url": url}},
    ]
    items = [{"type": "input_image", "image_url": url}, {"type": "input_file", "file_url": url}]
    blocks = [
        {"type": "image", "source": {"type": "url", "url": url}},
        {"type": "document", "source": {"type": "url", "url": url}},
    ]
    tool = {"type": "mcp", "server_label": "x", "server_url": url, "require_approval": "never"}
    chat = [{"messages": [{"role": "user", "content": [part]}]} for part in parts]
    return {
        **{f"chat/completions#{index}": body for index, body in enumerate(chat)},
        "chat/completions#tool": {"messages": [{"role": "user", "content": "hi"}], "tools": [tool]},
        "chat/completions#detours": {"messages": [{"role": "user", "content": "hi"}], **detours(url)},
        "responses": {"input": [{"role": "user", "content": items}]},
        "responses#tool": {"input": "hi", "tools": [tool]},
        "responses#detours": {"input": "hi", **detours(url)},
        **{f"messages#{i}": {"max_tokens": 5, "messages": [{"role": "user", "content": [b]}]}
           for i, b in enumerate(blocks)},
        "messages#detours": {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], **detours(url)},
        "completions#detours": {"prompt": url, **detours(url)},
    }  # fmt: skip


def hold(gateway: Any, listener: Listener, planted: str, model: str) -> None:
    LOOKED_UP.clear()
    OPENED.clear()
    for url in addresses(listener, planted):
        for path, body in bodies(url).items():
            answer = gateway.http.post(
                f"/v1/{path.partition('#')[0]}",
                json={"model": model, **body},
                headers={"authorization": "Bearer sk-x", "x-api-key": "sk-x", "anthropic-version": "2023-06-01"},
                timeout=60,
            )
            assert answer.status_code != 500, (path, url, answer.text[:300])
            json.loads(answer.text)
    assert LOOKED_UP == []
    assert OPENED == []
    assert listener.n_calls == 0


PROVIDERS = ("openai", "anthropic", "gemini", "ollama", "ollama_chat", "mistral", "fireworks_ai", "hosted_vllm",
             "bedrock", "deepseek")  # fmt: skip


@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_provider_makes_the_service_fetch(make_gateway, upstream, listener, tmp_path, monkeypatch, provider) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_REGION_NAME", "us-east-1")
    planted = tmp_path / "canary-file.png"
    planted.write_bytes(b"\x89PNG\r\n\x1a\n")
    upstream.reply = chat_answer("hello")
    gateway = make_gateway(timeout_s=20.0)
    model = "anthropic.claude-3-haiku-20240307-v1:0" if provider == "bedrock" else "policy"
    gateway.engines.add("hosted", f"{provider}/{model}", kind="litellm", api_base=upstream.base_url)
    hold(gateway, listener, str(planted), "any")


def test_no_engine_of_ones_own_makes_the_service_fetch(make_gateway, upstream, listener, tmp_path) -> None:
    planted = tmp_path / "canary-file.png"
    planted.write_bytes(b"\x89PNG\r\n\x1a\n")
    gateway = make_gateway(timeout_s=20.0)
    gateway.engines.add("own", upstream.base_url)
    hold(gateway, listener, str(planted), "policy")
