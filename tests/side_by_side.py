"""How tests are shared out over the processes of ``pytest -n``: by file, and in an order that leaves no
long tail.

A file's tests stay together, so that fixtures of a module are made once. All that drives a browser is one share: a
studio and a Chromium keep a core busy by themselves, and two pairs of them would make each other late.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.left_out import mark_beyond

TOGETHER = "tests/browser/"
LONGEST_FIRST = (
    TOGETHER,
    "tests/real_engines/",
    "tests/agents/",
    "tests/clients/",
    "tests/e2e/",
    "tests/trainers/",
    "tests/kills/",
    "tests/survival/",
    "tests/access/",
    "tests/export/",
)


def share(nodeid: str) -> str:
    """The share that a test belongs to; one process runs the whole of it."""
    return TOGETHER if nodeid.startswith(TOGETHER) else nodeid.split("::", 1)[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest shares first, the rest as it was found: what is short fills the gaps at the end."""
    mark_beyond(config, items)
    rank = {folder: number for number, folder in enumerate(LONGEST_FIRST)}

    def folder(item: pytest.Item) -> int:
        return next((rank[name] for name in rank if item.nodeid.startswith(name)), len(rank))

    items.sort(key=folder)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Shares in the order of collection, for ``--dist loadfile``."""
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return share(nodeid)

    config.option.loadscopereorder = False
    return Shares(config, log)
