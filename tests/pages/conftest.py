"""Fixtures: a service in this process, and pages run by Streamlit's own test runner."""

from __future__ import annotations

import pytest

from core.service import Service
from tests.pages.samples import agent_steps, long_step, title_step
from tests.studio.conftest import Page, open_page, service

__all__ = ["Page", "open_page", "service"]


@pytest.fixture
def filled(service: Service) -> Service:
    """The service with three groups of four trajectories, an auxiliary call, and a context of 32k tokens."""
    steps, completions = agent_steps()
    service.pool.steps.append([*steps, title_step(), long_step()], completions=completions)
    return service
