"""What a run leaves out, always with its reason: pytest lists them at the end. With ``CI`` set nothing is left out."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

IN_CI = bool(os.environ.get("CI"))


def only_in_ci(why: str) -> pytest.MarkDecorator:
    """The mark of a test that is too heavy for every run; ``why`` says what it takes."""
    return pytest.mark.skipif(not IN_CI, reason=f"{why}: .ci/run runs it, or CI=1 pytest")


def missing(what: str) -> NoReturn:
    """Leave out a test for want of something that ``.ci/run`` installs: there it is a failure."""
    if IN_CI:
        pytest.fail(what)
    pytest.skip(what)
