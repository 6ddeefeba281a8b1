"""The pages, declared once: navigation, headers and links between pages all read this table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# A wheel holds the pages inside this package, a checkout beside it (setup.py).
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
            "The pool at a glance, and how to point an agent at it.",
        ),
        PageInfo(
            "collect",
            "Collect",
            ":material/sensors:",
            "Capture",
            "Calls as they arrive: rate, latency, errors, and who makes them.",
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
            "Filter the pool, label what matters, decide what is trained.",
        ),
        PageInfo(
            "datasets",
            "Datasets",
            ":material/inventory:",
            "Refine",
            "Immutable versions of what was chosen: freeze, compare, export; and which reward counts.",
        ),
        PageInfo(
            "sql",
            "SQL",
            ":material/database_search:",
            "Refine",
            "Ask the pool anything, read-only; keep the answer as a chart or a view.",
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
            "Recipe to plan to file: what would be trained, and what not and why.",
        ),
        PageInfo(
            "consume",
            "Consume",
            ":material/outbox:",
            "Train",
            "What trainers took, how old it was, what came of it; and the recipe of the next fetch.",
        ),
        PageInfo(
            "settings",
            "Settings",
            ":material/tune:",
            "Studio",
            "Every setting with its source, the engine, the folder, and what is wrong.",
        ),
    )
}
