"""HTTP routes that both engines share: models, health, tokenize, detokenize (vLLM's formats)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from core.errors import InvalidInput
from core.serving.httpd import Routes, json_response, read_json
from core.serving.protocol import NOT_SERVED, render_body
from core.serving.spelling import Spellings
from core.serving.tokenizer import ChatTokenizer


def common_routes(
    tokenizer: Callable[[], ChatTokenizer],
    model: Callable[[], str],
    *,
    created: int,
    context_length: Callable[[], int],
    spellings: Spellings,
) -> Routes:
    """The shared routes. Tokenizer, model name and context length are looked up at each request."""

    async def models(request: web.BaseRequest) -> web.Response:
        card: dict[str, Any] = {"id": model(), "object": "model", "created": created, "owned_by": "claw-studio"}
        card |= {"root": model(), "parent": None, "max_model_len": context_length(), "permission": []}
        # In addition to OpenAI's and vLLM's fields: the tokenizer's hash, so that it can be stored with the ids.
        card |= {"tokenizer_hash": tokenizer().hash, "not_served": list(NOT_SERVED)}
        return json_response({"object": "list", "data": [card]})

    async def health(request: web.BaseRequest) -> web.Response:
        return json_response({"status": "ok", "model": model()})

    async def tokenize(request: web.BaseRequest) -> web.Response:
        body = await read_json(request)
        coder = tokenizer()
        ids = coder.encode(_text(body, coder, spellings))
        strings = [coder.token_bytes[i].decode("utf-8", "replace") for i in ids]
        return json_response(
            {
                "count": len(ids),
                "max_model_len": context_length(),
                "tokens": ids,
                "token_strs": strings if body.get("return_token_strs") else None,
            }
        )

    async def detokenize(request: web.BaseRequest) -> web.Response:
        tokens = (await read_json(request)).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(i, int) and i >= 0 for i in tokens):
            raise InvalidInput("tokens must be a list of token ids", field="tokens")
        return json_response({"prompt": tokenizer().decode(tokens, skip_special=False)})

    return {
        ("GET", "/v1/models"): models,
        ("GET", "/health"): health,
        ("POST", "/tokenize"): tokenize,
        ("POST", "/detokenize"): detokenize,
    }


def _text(body: dict[str, Any], tokenizer: ChatTokenizer, spellings: Spellings) -> str:
    if isinstance(body.get("prompt"), str):
        return str(body["prompt"])
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InvalidInput("give prompt (text) or messages", field="prompt")
    return render_body(
        spellings.respelled(messages), body.get("tools"), body.get("chat_template_kwargs") or {}, body, tokenizer
    )
