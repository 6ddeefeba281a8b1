"""Verifiers: one per file, registered by name in ``REGISTRY`` or ``SERVED``.

score(workspace, {"verifier": "json_equals", "path": "config.json", "expected": {...}}).value  # 0 .. 1
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.rewards import (
    code_check,
    csv_sum,
    entry_point,
    every,
    file_contains,
    final_answer,
    final_number,
    grade,
    harbor,
    http_callback,
    human,
    json_equals,
    json_schema,
    lines_equal,
    next_state,
    regex,
    reward_sh,
    rubric,
    unit_tests,
)
from core.rewards.base import OUTCOMES, Outcome, Score, Unscored, Verifier
from core.rewards.services import ServedVerifier, Services
from core.sandbox import IsolationMissing

TEXT_VERIFIERS: frozenset[str] = frozenset({"final_answer", "final_number"})
"""Verifiers that read only ``check["text"]``, open no file and run nothing."""

__all__ = [
    "OUTCOMES",
    "REGISTRY",
    "SERVED",
    "TEXT_VERIFIERS",
    "Outcome",
    "Score",
    "Services",
    "Verifier",
    "score",
]

NO_SERVICES = Services()


def score(workspace: Path, check: Mapping[str, Any], services: Services = NO_SERVICES) -> Score:
    """Run the verifier named by ``check["verifier"]``.

    If the verifier fails, the score has no value, and ``outcome`` and ``error`` have the reason.

    Args:
        workspace: what the agent left. It is not changed.
        check: the specification of the check; ``core.packs.checks.check_of`` makes that of a task.
        services: a judge, addresses of callbacks, and who labels, for the verifiers that need them.

    Raises:
        InvalidInput: the verifier is unknown, or its specification is invalid.
        IsolationMissing: the check demands a level of isolation that this machine does not have.
    """
    name = check.get("verifier")
    try:
        if name in REGISTRY:
            return REGISTRY[name](workspace, check)
        if name in SERVED:
            return SERVED[name](workspace, check, services)
    except Unscored as unscored:
        return unscored.score
    except (InvalidInput, IsolationMissing):
        raise
    except Exception as error:  # verifiers are extensible: their failures are recorded, not raised
        return Score(None, error=f"{type(error).__name__}: {error}", outcome="crashed")
    raise InvalidInput(
        f"no verifier {name!r}", field="check.verifier", hint=f"one of {', '.join(sorted({*REGISTRY, *SERVED}))}"
    )


REGISTRY: dict[str, Verifier] = {
    "code_check": code_check.verify,
    "csv_sum": csv_sum.verify,
    "entry_point": entry_point.verify,
    "file_contains": file_contains.verify,
    "final_answer": final_answer.verify,
    "final_number": final_number.verify,
    "grade": grade.verify,
    "harbor": harbor.verify,
    "json_equals": json_equals.verify,
    "json_schema": json_schema.verify,
    "lines_equal": lines_equal.verify,
    "regex": regex.verify,
    "reward_sh": reward_sh.verify,
    "unit_tests": unit_tests.verify,
}
SERVED: dict[str, ServedVerifier] = {
    "every": every.averaging(score),
    "http_callback": http_callback.verify,
    "human": human.verify,
    "next_state": next_state.verify,
    "rubric": rubric.verify,
}
