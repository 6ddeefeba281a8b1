"""Error bodies for requests refused before routing: the path decides the dialect."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import orjson

from core.dialects.errors import anthropic_error, openai_error
from core.errors import StudioError
from core.gateway.http.asgi import JSON, Headers

MODEL_PATH: Final = re.compile(
    r"(?!/api/v1/|[\s\S]*/(?:register|complete)_trajectory$)(?:/[^/]+/[^/]+)?/(?:v1/|(?:de)?tokenize$)"
)
"""Paths of model calls. Two of Claw-R1's paths below a trajectory's prefix are no model calls; engines serve their
tokenizer beside ``/v1``.
"""
_MESSAGES_PATH = re.compile(r"/v1/messages(?:/|$)")


def refusal(path: str, headers: Iterable[tuple[bytes, bytes]], error: StudioError) -> tuple[bytes, Headers]:
    """Body and headers of an error response."""
    if not MODEL_PATH.match(path):
        body = error.as_dict()
    elif _MESSAGES_PATH.search(path) or any(name == b"anthropic-version" for name, _ in headers):
        body = anthropic_error(error)
    else:
        body = openai_error(error)
    reply_headers = [JSON]
    if (wait_s := getattr(error, "retry_after_s", None)) is not None:
        reply_headers.append((b"retry-after", f"{wait_s:.0f}".encode()))
    return orjson.dumps(body), reply_headers
