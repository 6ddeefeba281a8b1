"""The table of pages, read by navigation, headers and links between pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# In a wheel the pages are inside this package, in a checkout beside it (setup.py).
PAGES_DIR = _HERE / "pages" if (_HERE / "pages").is_dir() else _HERE.parent / "pages"


@dataclass(frozen=True, slots=True)
class PageInfo:
    """One page: its file ``pages/<key>.py``, its title, icon, section and one-line purpose."""

    key: str
    title: str
    icon: str
    section: str
    purpose: str

    @property
    def path(self) -> Path:
        """The page's script."""
        return PAGES_DIR / f"{self.key}.py"

    @property
    def url_path(self) -> str:
        """Path in the browser; the default page has none."""
        return "" if self.key == DEFAULT_PAGE else self.key


DEFAULT_PAGE = "overview"

PAGES: dict[str, PageInfo] = {
    page.key: page
    for page in (
        PageInfo(
            "overview",
            "Overview",
            ":material/space_dashboard:",
            "",
            "Summary of the pool, and how to connect an agent.",
        ),
        PageInfo(
            "collect",
            "Collect",
            ":material/sensors:",
            "Capture",
            "Calls as they arrive: rate, latency, errors, and callers.",
        ),
        PageInfo(
            "tasks",
            "Tasks",
            ":material/assignment:",
            "Capture",
            "Task packs: search, files, checks and rubrics, success by policy version, reports of runs.",
        ),
        PageInfo(
            "synthesis",
            "Synthesis",
            ":material/experiment:",
            "Capture",
            "Have models write task packs; inspect every stage, and the proof that each checker holds.",
        ),
        PageInfo(
            "rollouts",
            "Rollouts",
            ":material/rocket_launch:",
            "Capture",
            "Let an agent attempt the tasks of a pack in sandboxes, and score what it left.",
        ),
        PageInfo(
            "inspect",
            "Inspect",
            ":material/frame_inspect:",
            "Capture",
            "From trajectory to step to token, exactly as sampled.",
        ),
        PageInfo(
            "curate",
            "Curate",
            ":material/filter_alt:",
            "Refine",
            "Filter the pool, label steps and trajectories, decide what is trained.",
        ),
        PageInfo(
            "datasets",
            "Datasets",
            ":material/inventory:",
            "Refine",
            "Immutable versions of selected steps, and reward policies.",
        ),
        PageInfo(
            "sql",
            "SQL",
            ":material/database_search:",
            "Refine",
            "Query the pool, read-only; show the result as a chart or save it as a view.",
        ),
        PageInfo(
            "optimise",
            "Optimise",
            ":material/account_tree:",
            "Refine",
            "Shared prefixes, packing and the attention mask of a batch.",
        ),
        PageInfo(
            "batch",
            "Batch",
            ":material/inventory_2:",
            "Train",
            "From recipe to plan to file: which steps are trained, which are not, and why.",
        ),
        PageInfo(
            "consume",
            "Consume",
            ":material/outbox:",
            "Train",
            "Batches that trainers fetched, their staleness and metrics; the recipe of the next fetch.",
        ),
        PageInfo(
            "learn",
            "Learn",
            ":material/trending_up:",
            "Train",
            "Reward by policy version: what the policy's training changed, and how each update went.",
        ),
        PageInfo(
            "cluster",
            "Cluster",
            ":material/hub:",
            "Studio",
            "Machines and gateways: which take calls, what is not copied yet, and what is in force.",
        ),
        PageInfo(
            "settings",
            "Settings",
            ":material/tune:",
            "Studio",
            "Every setting with its source, engines, the data folder, and problems.",
        ),
    )
}
