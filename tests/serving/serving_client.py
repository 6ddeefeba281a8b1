"""The real SDK and plain HTTP against a running engine."""

from __future__ import annotations

from typing import Any

import httpx
import openai

from core.serving.process import EngineProcess

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "list_files",
            "description": "List a folder.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
IDS = {"return_token_ids": True}


class Client:
    """The real SDK against one engine, and plain HTTP beside it."""

    def __init__(self, process: EngineProcess) -> None:
        assert process.base_url is not None
        self.process = process
        self.root = process.base_url.removesuffix("/v1")
        self.http = httpx.Client(base_url=self.root, timeout=60)
        self.sdk = openai.OpenAI(base_url=process.base_url, api_key="none", max_retries=0, timeout=60)

    def script(self, script: dict[str, Any]) -> None:
        self.http.put("/__script", json=script).raise_for_status()

    def log(self) -> list[dict[str, Any]]:
        return self.http.get("/__log").json()["requests"]

    def chat(self, messages: list[Any], **kwargs: Any) -> Any:
        extra = kwargs.pop("extra", IDS)
        return self.sdk.chat.completions.create(model="any", messages=messages, extra_body=extra, **kwargs)

    def close(self) -> None:
        self.sdk.close()
        self.http.close()
