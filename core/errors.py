"""The failure model, in one place.

Every failure that a user can cause or mend is a ``StudioError``: it names the field and the mend. The HTTP
surface turns it into ``{"type", "message", "field", "hint"}`` with ``http_status``; the gateway into the
agent's own dialect; the pages into a call-out; the CLI into one line and exit code 2.
"""

from __future__ import annotations

import errno
from typing import Any


class StudioError(Exception):
    """A failure with a name, the field it concerns, and how to mend it."""

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
    """A request, file or setting that does not fit its form."""

    type = "invalid_input"
    http_status = 422


class NotFound(StudioError):
    """No such step, trajectory, group, batch, view or route."""

    type = "not_found"
    http_status = 404


class Unauthorized(StudioError):
    """No key, or one that does not fit."""

    type = "unauthorized"
    http_status = 401


class Forbidden(Unauthorized):
    """A key that holds, for something else."""

    type = "forbidden"
    http_status = 403


class TooManyAttempts(Unauthorized):
    """Too many different wrong keys came from one address; ``retry_after_s`` is when it is heard again."""

    type = "too_many_attempts"
    http_status = 429

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, field="authorization", hint=f"try again in {retry_after_s:.0f} s")
        self.retry_after_s = retry_after_s


class KeySpent(StudioError):
    """A session key has made the calls or used the tokens that it may; ``retry_after_s`` where waiting helps."""

    type = "key_spent"
    http_status = 429

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        hint = "POST /api/v1/sessions makes another" if retry_after_s is None else f"try again in {retry_after_s:.0f} s"
        super().__init__(message, field="authorization", hint=hint)
        self.retry_after_s = retry_after_s


class UnknownHost(StudioError):
    """A request for a host name that is not ours: a page whose name was rebound to this machine sends its own."""

    type = "unknown_host"
    http_status = 421


class ForeignOrigin(StudioError):
    """A request that a web page of another origin made in the user's browser."""

    type = "foreign_origin"
    http_status = 403


class UnsupportedMedia(StudioError):
    """A body whose declared type is not the one that the call takes."""

    type = "unsupported_media_type"
    http_status = 415


class MalformedHttp(StudioError):
    """Bytes that are no HTTP request, or one that two readers would take for different ones."""

    type = "malformed_http"
    http_status = 400


class UnsupportedHttp(StudioError):
    """A method, a version or a coding of HTTP that is not served."""

    type = "unsupported_http"
    http_status = 501


class RequestTimeout(StudioError):
    """A request that did not come in time."""

    type = "request_timeout"
    http_status = 408


class HeadersTooLarge(StudioError):
    """A request whose headers are over the limit."""

    type = "headers_too_large"
    http_status = 431


class Overloaded(StudioError):
    """More connections, or more bytes of bodies, than can be served at a time."""

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
    """A call could not be made durable (disk full, read-only, gone): the call fails, nothing is pretended."""

    type = "capture_not_durable"
    http_status = 507


class EngineError(StudioError):
    """The policy engine refused, failed, hung or sent garbage. ``upstream_status`` is its HTTP status."""

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
    """A disk takes nothing more, or has no inode left: nothing is changed, nothing is pretended."""

    type = "no_room"
    http_status = 507


def is_full(error: OSError) -> bool:
    """Whether the system refused for lack of room, inodes or quota."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class PoolDamaged(PoolError):
    """The pool's file is gone, cut short or damaged: it is made again from the journal and the opinions log."""

    type = "pool_damaged"
    http_status = 503


class OpinionsError(PoolError):
    """An opinion could not be made durable (disk full, read-only, gone): nothing is changed, nothing is pretended."""

    type = "opinion_not_durable"
    http_status = 507
