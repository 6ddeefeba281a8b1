"""Removes secrets before data is stored.

Only allow-listed headers are kept. Fields that hold keys are removed, and their values are replaced wherever they
appear.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

SECRET_FIELDS: Final = frozenset(
    {
        "api_key",
        "apikey",
        "authorization",
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "azure_ad_token",
        "client_secret",
        "default_headers",
        "extra_headers",
        "headers",
        "vertex_credentials",
    }
)
"""Top-level request fields that hold keys or headers in some clients; never recorded."""

NESTED_SECRETS: Final[Mapping[str, frozenset[str]]] = {
    "mcp_servers": frozenset({"authorization", "authorization_token", "headers"}),
    "tools": frozenset({"authorization", "authorization_token", "headers"}),
}
"""Such fields in the objects of a request's lists: credentials for MCP servers."""

SETTINGS_FIELDS: Final = frozenset(
    {
        "default_query", "extra_body", "extra_params", "extra_query", "litellm_metadata", "litellm_params", "metadata",
        "provider", "provider_options", "query", "user_config",
    }
)  # fmt: skip
"""Request fields with client settings, which may hold keys at any depth."""

_LOGGED_SECRETS: Final = SECRET_FIELDS | {
    "cookie", "cookies", "password", "proxy-authorization", "proxy_authorization", "secret_key", "set-cookie",
    "user_api_key", "user_api_key_hash", "x-api-key", "x_api_key",
}  # fmt: skip
"""Names, in lower case, of fields that hold keys in logs."""

_SECRET_ENDS: Final = (
    "api_key",
    "apikey",
    "auth_token",
    "access_token",
    "refresh_token",
    "_password",
    "_secret",
    "secret_key",
)

_CONVERSATION_FIELDS: Final = frozenset(
    {
        "choices", "completion_token_ids", "content", "functions", "input", "logprobs", "loss_mask",
        "message", "messages", "next_state", "observations", "output", "prompt", "prompt_ids",
        "prompt_token_ids", "raw_prompts", "raw_response", "response", "response_ids", "response_logprobs",
        "response_message", "response_text", "rollout_log_probs", "steps", "tokens", "tool_calls", "tools",
    }
)  # fmt: skip
"""Conversation and token fields: a field with a secret's name inside them is content."""

_HARMLESS_HEADERS: Final = frozenset(
    {
        "accept", "accept-encoding", "accept-language", "cache-control", "connection", "content-encoding",
        "content-length", "content-type", "date", "host", "http-referer", "origin", "referer", "server",
        "transfer-encoding", "user-agent", "x-forwarded-for", "x-forwarded-proto", "x-title",
    }
)  # fmt: skip
"""Headers, besides ``HEADER_ALLOW``, whose values are not keys and are common in conversations."""

MIN_SECRET_CHARS: Final = 12
"""Shorter keys are placeholders ("EMPTY", "sk-local"); replacing them would only damage texts."""

HEADER_ALLOW: Final = frozenset(
    {
        "anthropic-beta",
        "anthropic-version",
        "openai-beta",
        "session-id",
        "session_id",
        "thread-id",
        "traceparent",
        "user-agent",
        "x-claude-code-session-id",
        "x-request-id",
        "x-session-affinity",
        "x-session-id",
        "x-stainless-lang",
        "x-stainless-package-version",
        "x-stainless-retry-count",
        "x-stainless-timeout",
    }
)
"""Recorded request headers: they identify caller and client, and hold no credentials."""

SCRUBBED: Final = b"[secret]"
_WORDS: Final = re.compile(r"[\s;,=\"']+")


def pop_secrets(request: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Remove the fields that hold keys from a request, in place.

    Returns:
        Names of the removed fields, and all texts in them.
    """
    names = sorted(SECRET_FIELDS.intersection(request))
    texts = [text for name in names for text in _texts_in(request.pop(name))]
    for place, secret in NESTED_SECRETS.items():
        listed = request.get(place)
        for item in listed if isinstance(listed, list) else ():
            for name in sorted(secret.intersection(item)) if isinstance(item, dict) else ():
                texts += _texts_in(item.pop(name))
                names.append(f"{place}.{name}")
    for place in SETTINGS_FIELDS.intersection(request):
        if isinstance(request[place], dict | list):
            request[place] = _without_secret_fields(request[place], place, names, texts)
    return list(dict.fromkeys(names)), texts


def _without_secret_fields(value: Any, where: str, names: list[str], texts: list[str]) -> Any:
    """JSON without fields that hold keys, at any depth; appends their names and texts."""
    if isinstance(value, list):
        return [_without_secret_fields(item, where, names, texts) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, inner in value.items():
        if is_secret_name(str(name)):
            names.append(f"{where}.{name}")
            texts.extend(_texts_in(inner))
        else:
            kept[name] = _without_secret_fields(inner, f"{where}.{name}", names, texts)
    return kept


def is_secret_name(field: str) -> bool:
    """Whether a field of this name holds a key, or headers with one."""
    name = field.lower()
    return name in _LOGGED_SECRETS or name.replace("-", "_").endswith(_SECRET_ENDS)


def scrub_metadata(value: Mapping[str, Any]) -> dict[str, Any]:
    """A caller's ``metadata`` without fields that hold keys, and without these keys elsewhere in it."""
    names: list[str] = []
    texts: list[str] = []
    kept = _without_secret_fields(dict(value), "metadata", names, texts)
    cleaned: dict[str, Any] = scrubbed(kept, texts) if names else dict(value)
    return cleaned


def split_login(url: str) -> tuple[str, str | None]:
    """(URL without ``user:password@``, the login); the login is None if there is none."""
    scheme, sign, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    login, at, host = authority.rpartition("@")
    return (f"{scheme}{sign}{host}{slash}{path}", login) if sign and at else (url, None)


def scrub_step(step: Mapping[str, Any]) -> dict[str, Any]:
    """A producer's step without fields that hold keys, at any depth of its settings and metadata.

    Imported logs hold the headers and keys of the calls that they logged. The values of such fields are replaced in the
    rest of the step; ``metadata.dropped_fields`` names the fields.
    """
    names: list[str] = []
    texts: list[str] = []

    cleaned_step = dict(step)
    for field in ("sampling", "metadata"):
        if cleaned_step.get(field):
            cleaned_step[field] = _without_secret_fields(cleaned_step[field], field, names, texts)
    if isinstance(cleaned_step.get("tools"), list):
        # Only a tool's own fields: its schema may have a property with such a name.
        cleaned_step["tools"] = [dict(tool) if isinstance(tool, dict) else tool for tool in cleaned_step["tools"]]
        taken, inner = pop_secrets({"tools": cleaned_step["tools"]})
        names += taken
        texts += inner
    if not names:
        return dict(step)
    cleaned: dict[str, Any] = scrubbed(cleaned_step, texts)
    dropped = [*((step.get("metadata") or {}).get("dropped_fields") or ()), *names]
    cleaned["metadata"] = {**(cleaned.get("metadata") or {}), "dropped_fields": list(dict.fromkeys(dropped))}
    return cleaned


def logged_secrets(record: Any) -> list[str]:
    """The keys in another program's log record, from fields with such a name at any depth.

    Conversation fields are not searched.
    """
    if isinstance(record, list):
        return [text for item in record for text in logged_secrets(item)]
    if not isinstance(record, Mapping):
        return []
    secrets: list[str] = []
    for name, value in record.items():
        field = str(name).lower()
        if is_secret_name(field):
            secrets += _texts_in(value)
        elif field not in _CONVERSATION_FIELDS:
            secrets += logged_secrets(value)
    return secrets


def scrubbed(value: Any, secrets: Iterable[str]) -> Any:
    """A JSON value with these secrets replaced; those too short to be keys are not replaced."""
    long = {secret for secret in secrets if len(secret) >= MIN_SECRET_CHARS}
    if not long:
        return value
    body = orjson.dumps(value)
    # Longer keys are replaced first: if a key contains another, no part of it remains.
    for secret in sorted(long, key=len, reverse=True):
        body = scrub_bytes(body, secret)
    return orjson.loads(body)


def _texts_in(value: Any) -> list[str]:
    """All texts in a field of keys or headers, and their words: ``Bearer KEY``, ``session=KEY; path=/``."""
    if isinstance(value, str):
        return [value, *(word for word in _WORDS.split(value) if word != value)]
    if isinstance(value, list):
        return [text for item in value for text in _texts_in(item)]
    if not isinstance(value, dict):
        return []
    harmless = HEADER_ALLOW | _HARMLESS_HEADERS
    return [text for name, item in value.items() if str(name).lower() not in harmless for text in _texts_in(item)]


def scrub_bytes(payload: bytes, secret: str) -> bytes:
    """Replace a key in JSON text by ``[secret]``."""
    # Quotes and backslashes of a key are escaped in JSON.
    needle = orjson.dumps(secret)[1:-1]
    return payload.replace(needle, SCRUBBED) if needle in payload else payload


def header_text(value: bytes) -> str:
    """A header's value, decoded as UTF-8 if valid, else as Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def harmless_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The allow-listed ASGI headers as text; ASGI names are in lower case."""
    kept: dict[str, str] = {}
    for name, value in headers:
        text = name.decode("latin-1")
        if text in HEADER_ALLOW:
            kept[text] = header_text(value)
    return kept
