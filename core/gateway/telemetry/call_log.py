"""One log line for each finished call, at level INFO."""

from __future__ import annotations

import logging

from core.gateway.telemetry.stats import CallEvent

log = logging.getLogger("core.calls")


def log_call(event: CallEvent, dropped: bool) -> None:
    """Log who called what and the result. Contents and keys are not logged."""
    if not log.isEnabledFor(logging.INFO):
        return
    fields = {
        "trajectory_uid": event.trajectory_uid,
        "step_uid": event.step_uid,
        "engine": event.engine,
        "model": event.model,
        "status": event.http_status,
        "latency_ms": round(event.latency_s * 1e3, 3),
        "agent": event.agent,
        "channel": event.channel,
        "dialect": event.dialect,
        "stream": event.stream,
        "n_prompt_tokens": event.n_prompt_tokens,
        "n_response_tokens": event.n_response_tokens,
        "error": event.error,
        "aborted": event.aborted,
        "dropped": dropped,
    }
    log.info("call", extra={"fields": fields})
