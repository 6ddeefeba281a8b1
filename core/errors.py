"""The failure model, in one place.

Every failure that a user can cause or mend is a ``StudioError``: it names the field and the mend. The HTTP
surface turns it into ``{"type", "message", "field", "hint"}`` with ``http_status``; the gateway into the
agent's own dialect; the pages into a call-out; the CLI into one line and exit code 2.
"""

from __future__ import annotations

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
        """The JSON shape of DESIGN's HTTP contract; absent keys are left out."""
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
