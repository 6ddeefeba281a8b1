"""Datasets: versions that never change, what differs between two, and which reward counts."""

from __future__ import annotations

from studio import widgets as w
from studio.widgets.choice import choose
from studio.widgets.freezing import freeze_tab
from studio.widgets.rewardpolicies import rewards_tab
from studio.widgets.versions import diff_tab, versions_tab

TABS = {
    "versions": ("Versions", versions_tab),
    "freeze": ("Freeze", freeze_tab),
    "diff": ("Compare", diff_tab),
    "rewards": ("Which reward counts", rewards_tab),
}

w.page_header("datasets")
tab = choose("Tab", {key: title for key, (title, _) in TABS.items()}, "tab")
with w.error_boundary():
    TABS[tab][1]()
