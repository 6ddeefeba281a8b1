"""Error bodies of the dialects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from core.errors import EngineError, InvalidInput, StudioError, Unauthorized

_TOO_LONG = re.compile(r"context[_ ]length|context (size|window)|maximum context|too long", re.IGNORECASE)

_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


def prompt_too_long(error: StudioError) -> bool:
    """Whether an engine refused because prompt and answer exceed the model's context."""
    return error.http_status in (400, 413, 422) and _TOO_LONG.search(error.message) is not None


def openai_error(error: StudioError) -> dict[str, Any]:
    """``{"error": {"message", "type", "param", "code"}}``, and the hint if there is one."""
    invalid = isinstance(error, InvalidInput | Unauthorized)
    body: dict[str, Any] = {
        "message": error.message,
        "type": "invalid_request_error" if invalid else error.type,
        "param": error.field,
        "code": "invalid_api_key" if isinstance(error, Unauthorized) else error.type,
    }
    if error.hint is not None:
        body["hint"] = error.hint
    return {"error": body}


def anthropic_error(error: StudioError) -> dict[str, Any]:
    """``{"type": "error", "error": {"type", "message"}}``."""
    message = f"{error.message} ({error.hint})" if error.hint else error.message
    if prompt_too_long(error) and not message.startswith("prompt is too long"):
        # Agents recognise this wording and compact their context.
        message = f"prompt is too long: {message}"
    kind = _ANTHROPIC_TYPES.get(error.http_status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def engine_refusal(status: int, body: Mapping[str, Any]) -> EngineError:
    """An engine's error response, in OpenAI's shape or with a bare message, as an EngineError."""
    error_field = body.get("error")
    details = error_field if isinstance(error_field, dict) else body
    message, kind = details.get("message"), details.get("type") if isinstance(error_field, dict) else None
    refusal = EngineError(
        str(message or error_field or f"the engine answered {status}"),
        upstream_status=status,
        field=_text(details.get("param")),
    )
    if status >= 500:
        refusal.http_status = status
    if code := _text(details.get("code")) or _text(kind):
        refusal.type = code
    return refusal


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
