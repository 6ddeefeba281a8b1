"""Merges what several gateway processes report about the same engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Status = dict[str, Any]

_SUMS: Final = ("n_calls", "n_errors", "in_flight", "waiting")


def merge_statuses(by_process: Sequence[Sequence[Status]]) -> list[Status]:
    """The ``EngineSet.status()`` of several processes, merged by engine; order of the first process, others after it.

    An engine is not ok if any process says so, and unknown (None) if none has called it.
    """
    by_name: dict[str, list[Status]] = {}
    for statuses in by_process:
        for status in statuses:
            by_name.setdefault(status["name"], []).append(status)
    return [_merge_engine(statuses) for statuses in by_name.values()]


def _merge_engine(statuses: Sequence[Status]) -> Status:
    first = statuses[0]
    merged = {**first, **{name: sum(one.get(name) or 0 for one in statuses) for name in _SUMS}}
    verdicts = [one["ok"] for one in statuses if one["ok"] is not None]
    merged["ok"] = all(verdicts) if verdicts else None
    merged["error"] = next((one["error"] for one in statuses if one["error"] and one["ok"] is False), None)
    merged["base_url"] = next((one["base_url"] for one in statuses if one["base_url"]), None)
    # The process that owns the pool calls no engine itself, so the process with the most findings is shown.
    known = max(statuses, key=lambda one: (len(one["findings"]), one["n_calls"]))
    merged["findings"], merged["streaming"] = known["findings"], known["streaming"]
    if "healthy" in first:
        callers = [one for one in statuses if one["n_calls"]] or statuses
        merged["healthy"] = all(one["healthy"] for one in callers)
        merged["checked_at"] = max((one["checked_at"] for one in statuses if one["checked_at"]), default=None)
    return merged
