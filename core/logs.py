"""Logs on stderr: lines for people, or one JSON object a line for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final

import orjson

FORMATS: Final = ("text", "json")


class JsonLines(logging.Formatter):
    """``{"at", "level", "logger", "message", ...}``; what ``extra={"fields": {...}}`` gives stands beside them."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class TextLines(logging.Formatter):
    """The same for people: fields behind the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The first line."""
        fields = getattr(record, "fields", {})
        return super().formatMessage(record) + "".join(f" {k}={v}" for k, v in fields.items() if v is not None)


def set_up(level: int, form: str) -> None:
    """Send all logs of this process to stderr, in one of ``FORMATS``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
