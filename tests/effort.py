"""How many examples property tests try, and how many cases long lists do: few in every run, all of them in CI.

``CLAW_EXAMPLES=all pytest -m hypothesis`` tries all examples: a step of ``.ci/run``. ``make beyond`` runs the cases
that ``make test`` left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import hypothesis
import pytest

from tests.left_out import only_in_ci

ALL = os.environ.get("CLAW_EXAMPLES") == "all"


def n_examples(most: int) -> int:
    """Of so many examples, those that this run tries: all, or a quarter."""
    return most if ALL else max(3, most // 4)


def settings(*, max_examples: int = 100, **more: Any) -> hypothesis.settings:
    """``hypothesis.settings`` with the number of examples that a run with all of them tries."""
    return hypothesis.settings(max_examples=n_examples(max_examples), **more)


def sampled(cases: Iterable[Any], every: int, why: str) -> list[Any]:
    """``cases`` to parametrize with: every so-many-th of them in each run, beginning with the first, the rest in CI."""
    rest = only_in_ci(why)
    several = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*values, marks=rest if number % every else ()) for number, values in enumerate(several)]
