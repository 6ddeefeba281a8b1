"""Logging to stderr: plain lines, or one JSON object per line.

Log text may come from agents and engines. Control characters are therefore escaped, so that text can't control a
terminal or imitate a log line.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from core.printable import as_json, printable

FORMATS: Final = ("text", "json")

_log = logging.getLogger(__name__)


class JsonLines(logging.Formatter):
    """``{"at", "level", "logger", "message", ...}`` and the fields of ``extra={"fields": {...}}``."""

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
        try:
            text = orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except orjson.JSONEncodeError:
            # Lone surrogates and large integers.
            text = json.dumps(line, default=str, skipkeys=True)
        return as_json(text)


class TextLines(logging.Formatter):
    """Plain lines, with fields after the message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line and an indented traceback, so that no line of it looks like a log line."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        lines = [printable(self.formatMessage(record))]
        if record.exc_info:
            lines += [f"    {printable(line)}" for line in self.formatException(record.exc_info).split("\n")]
        if record.stack_info:
            lines += [f"    {printable(line)}" for line in record.stack_info.split("\n")]
        return "\n".join(lines)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The first line."""
        fields = getattr(record, "fields", {})
        return super().formatMessage(record) + "".join(f" {k}={v}" for k, v in fields.items() if v is not None)


class _PrintableRecord(logging.LogRecord):
    """A record whose message and traceback are printable in any formatter."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.exc_info:
            trace = logging.Formatter().formatException(self.exc_info)
            # Indented, so that no line of it looks like a log line.
            self.exc_text = "\n".join(f"    {printable(line)}" for line in trace.split("\n"))

    def getMessage(self) -> str:
        """One line."""
        return printable(super().getMessage())


def escape_all_handlers() -> None:
    """Escape the log lines of other libraries' handlers as well."""
    logging.setLogRecordFactory(_PrintableRecord)


def set_up(level: int, form: str) -> None:
    """Send all logs of this process to stderr in one of ``FORMATS``, uncaught exceptions included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, trace: _log.critical("not caught", exc_info=(kind, error, trace))
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unraisable


def _thread_failed(hook: threading.ExceptHookArgs) -> None:
    name = hook.thread.name if hook.thread is not None else "?"
    error = hook.exc_value or hook.exc_type()
    _log.critical("uncaught exception in thread %s", name, exc_info=(hook.exc_type, error, hook.exc_traceback))


def _unraisable(hook: sys.UnraisableHookArgs) -> None:
    error = hook.exc_value or hook.exc_type()
    what = hook.err_msg or "not caught in"
    _log.error("%s %r", what, hook.object, exc_info=(hook.exc_type, error, hook.exc_traceback))
