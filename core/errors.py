"""All exception classes.

Every error that a user can cause or fix is a ``StudioError``, which names the field and the fix. The HTTP API returns
it as ``{"type", "message", "field", "hint"}`` with ``http_status``, the gateway in the agent's dialect. Pages show a
call-out. The CLI prints one line and exits with code 2.
"""

from __future__ import annotations

import errno
from typing import Any


class StudioError(Exception):
    """An error with a type, the field that it concerns, and a hint for fixing it."""

    type = "studio_error"
    http_status = 400

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint = hint

    def as_dict(self) -> dict[str, Any]:
        """The JSON shape of the HTTP contract (docs/architecture.md); absent keys are left out."""
        body: dict[str, Any] = {"type": self.type, "message": self.message}
        if self.field is not None:
            body["field"] = self.field
        if self.hint is not None:
            body["hint"] = self.hint
        return body


class InvalidInput(StudioError):
    """A request, file or setting is invalid."""

    type = "invalid_input"
    http_status = 422


class NotFound(StudioError):
    """No such step, trajectory, group, batch, view or route."""

    type = "not_found"
    http_status = 404


class Unauthorized(StudioError):
    """The key is missing or wrong."""

    type = "unauthorized"
    http_status = 401


class Forbidden(Unauthorized):
    """The key is valid, but does not allow this request."""

    type = "forbidden"
    http_status = 403


class TooManyAttempts(Unauthorized):
    """Too many different wrong keys came from one address. It is blocked for ``retry_after_s``."""

    type = "too_many_attempts"
    http_status = 429

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, field="authorization", hint=f"try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class KeySpent(StudioError):
    """A session key's budget of calls or tokens is used up; ``retry_after_s`` is set if waiting helps."""

    type = "key_spent"
    http_status = 429

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        hint = "POST /api/v1/sessions makes another" if retry_after_s is None else f"try again in {retry_after_s:.0f} s"
        super().__init__(message, field="authorization", hint=hint)
        self.retry_after_s = retry_after_s


class UnknownHost(StudioError):
    """The request's host name is not accepted. This prevents DNS rebinding by web pages."""

    type = "unknown_host"
    http_status = 421


class ForeignOrigin(StudioError):
    """The request was made by a web page of another origin in the user's browser."""

    type = "foreign_origin"
    http_status = 403


class UnsupportedMedia(StudioError):
    """The body's content type is not supported by this route."""

    type = "unsupported_media_type"
    http_status = 415


class MalformedHttp(StudioError):
    """The bytes are not a valid HTTP request, or one that parsers could interpret differently (request smuggling)."""

    type = "malformed_http"
    http_status = 400


class UnsupportedHttp(StudioError):
    """The HTTP method, version or coding is not supported."""

    type = "unsupported_http"
    http_status = 501


class RequestTimeout(StudioError):
    """The request was not received in time."""

    type = "request_timeout"
    http_status = 408


class HeadersTooLarge(StudioError):
    """The request's headers exceed the size limit."""

    type = "headers_too_large"
    http_status = 431


class Overloaded(StudioError):
    """The limit of concurrent connections or of body bytes in memory is reached."""

    type = "overloaded"
    http_status = 503
    retry_after_s = 1.0


class Conflict(StudioError):
    """The request contradicts what is stored (same uid, other content)."""

    type = "conflict"
    http_status = 409


class AlreadyOwned(StudioError):
    """Another process owns the data folder."""

    type = "already_owned"
    http_status = 409


class JournalError(StudioError):
    """A call could not be written to disk (full, read-only, missing). The call fails."""

    type = "capture_not_durable"
    http_status = 507


class EngineError(StudioError):
    """The policy engine refused, failed, or sent an invalid response. ``upstream_status`` is its HTTP status."""

    type = "engine_error"
    http_status = 502

    def __init__(
        self,
        message: str,
        *,
        upstream_status: int | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, field=field, hint=hint)
        self.upstream_status = upstream_status
        if upstream_status is not None and 400 <= upstream_status < 500:
            self.http_status = upstream_status


class EngineTimeout(EngineError):
    """The engine did not answer in time."""

    type = "engine_timeout"
    http_status = 504


class PoolError(StudioError):
    """The pool could not be opened, migrated or written."""

    type = "pool_error"
    http_status = 500


class NoRoom(PoolError):
    """A disk is full or has no inode left. Nothing was changed."""

    type = "no_room"
    http_status = 507


def is_full(error: OSError) -> bool:
    """Whether the operation failed for lack of disk space, inodes or quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class PoolDamaged(PoolError):
    """The pool's file is missing, truncated or damaged. It can be rebuilt from the journal and the opinions log."""

    type = "pool_damaged"
    http_status = 503


class OpinionsError(PoolError):
    """An opinion could not be written to disk (full, read-only, missing). Nothing was changed."""

    type = "opinion_not_durable"
    http_status = 507
