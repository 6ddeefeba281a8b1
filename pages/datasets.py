"""The Datasets page: immutable versions, differences between two, reward policies, re-scoring."""

from __future__ import annotations

from studio import kit
from studio.frame.header import page_header
from studio.kit.url_choices import segmented_choice
from studio.widgets.datasets.freeze import freeze_tab
from studio.widgets.datasets.rescoring import rescore_tab
from studio.widgets.datasets.reward_policies import rewards_tab
from studio.widgets.datasets.versions import diff_tab, versions_tab

TABS = {
    "versions": ("Versions", versions_tab),
    "freeze": ("Freeze", freeze_tab),
    "diff": ("Compare", diff_tab),
    "rewards": ("Reward policy", rewards_tab),
    "rescore": ("Re-score", rescore_tab),
}

page_header("datasets")
tab = segmented_choice("Tab", {key: title for key, (title, _) in TABS.items()}, "tab")
with kit.error_boundary():
    TABS[tab][1]()
