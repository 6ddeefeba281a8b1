"""Walks through all of it: against services as a user has them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="package", autouse=True)
def as_users_have_it(users_gateways: None) -> None:
    """Calls are taken by a gateway process, the default."""
