"""Pages of a large pool opened after a write, when no cached result counts, each timed from the click until it is whole.

Used by the browser test of a million steps and by ``bench/studio/bench_studio.py``. Before each move one step is
labelled, or one arrives, through the API; the click comes when that write is in the pool.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page

from core.client import StudioClient
from tests.browser.conftest import Studio
from tests.browser.walk import IDLE, appeared, caption, idle, poll

TICKS_S = 0.01
"""A tick of the kernel's processor clock."""
QUERY = "SELECT agent, count(*) AS n, avg(reward) AS mean FROM trajectories WHERE n_steps > {} GROUP BY agent"


@dataclass(slots=True)
class Times:
    """Milliseconds of one move, one per repetition.

    Attributes:
        first: from the click to the first content.
        whole: from the click until all is drawn and no script runs.
        cpu: processor time of the studio's processes meanwhile.
    """

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def processor_ms(pid: int) -> float:
    """Processor time that a process and its children have taken so far."""
    return sum(_ticks(each) for each in _family(pid)) * TICKS_S * 1e3


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _family(int(child))


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


class PageWalk:
    """One browser page; ``times`` holds the times by move.

    Args:
        page: of the browser.
        studio: the running studio.
        repeat: repetitions of each move.
        step: names the step that is labelled before the nth move; its trajectory is of the channel ``train``.
        long: a trajectory of many turns, the newest; None: there is none.
        version: a dataset version with many rows; None: there is none.
    """

    def __init__(
        self,
        page: Page,
        studio: Studio,
        repeat: int,
        step: Callable[[int], str],
        *,
        long: str | None = None,
        version: str | None = None,
    ) -> None:
        self.page, self.studio, self.repeat = page, studio, repeat
        self.client = StudioClient(studio.gateway_url)
        self.step, self.long, self.version = step, long, version
        self.times: dict[str, Times] = {}
        self.n_writes = 0

    def run(self) -> dict[str, Times]:
        """Every move, ``repeat`` times."""
        moves = [self.pages, self.tabs, self.groups, self.arrival, self.query]
        moves += [self.rows] if self.version is not None else []
        moves += [self.turns] if self.long is not None else []
        for move in moves:
            move()
        return self.times

    def label(self) -> None:
        """Label one step: the studio's results of before no longer count."""
        self.client.annotate("quality", "good", step_uid=self.step(self.n_writes))
        self.n_writes += 1

    def arrive(self) -> None:
        """One step arrives, and is in the pool."""
        number = self.n_writes = self.n_writes + 1
        uid = f"arrived-{time.time_ns()}"
        step = {"step_uid": uid, "trajectory_uid": uid, "prompt_uid": "arrived", "step_index": 0, "agent": "coder"}
        self.client.submit([{**step, "created_at": 1_900_000_000.0 + number}])
        poll(lambda: uid in self.client.known([uid]), f"{uid} is not stored")

    def timed(self, name: str, act: Callable[[], Any], first: Locator, last: Locator) -> None:
        """Note the time from the click to the first content, and until the last is there and no script runs."""
        before, start = processor_ms(self.studio.process.pid), time.perf_counter()
        act()
        appeared(first)
        shown = time.perf_counter()
        appeared(last)
        poll(lambda: self.page.evaluate(IDLE.replace("() => ", "")), "a script runs")
        end = time.perf_counter()
        times = self.times.setdefault(name, Times())
        times.first.append(1e3 * (shown - start))
        times.whole.append(1e3 * (end - start))
        times.cpu.append(processor_ms(self.studio.process.pid) - before)

    def open(self, path: str, sign: str) -> None:
        """Load a page and let it settle; not timed."""
        self.page.goto(f"{self.studio.url}/{path}")
        self.page.locator(sign).first.wait_for()
        idle(self.page)

    def link(self, title: str) -> Locator:
        """The page's link in the sidebar."""
        return self.page.get_by_test_id("stSidebarNavLink").filter(has_text=re.compile(f"{title}$"))

    def signs(self) -> Mapping[str, tuple[Locator, Locator]]:
        """Title of a page -> its first content, and its last."""
        page = self.page
        table, figures = page.locator("[data-testid=stDataFrame] canvas").first, page.locator(".cs-figs").first
        return {
            "Overview": (figures, page.locator(".cs-connect, .st-key-panel-token_source .cs-bars").first),
            "Inspect": (table, caption(page)),
            "Curate": (table, page.get_by_text("Active plan:").first),
            "Batch": (figures, table),
        }

    def pages(self) -> None:
        """Each page from another one, after a write."""
        for title, (first, last) in self.signs().items():
            self.open("settings", ".cs-facts, .cs-table")
            for _ in range(self.repeat):
                self.label()
                self.timed(f"{title} after a write", self.link(title).click, first, last)
                self.link("Settings").click()
                self.page.get_by_role("heading", name="Settings").first.wait_for()
                idle(self.page)

    def tabs(self) -> None:
        """Tabs that compute over the whole pool, after a write."""
        page = self.page
        plot = page.locator(".js-plotly-plot")
        for path, other, tab, first, last in (
            ("batch?tab=json", "JSON", "Estimators", page.get_by_test_id("stMultiSelect").first, plot.first),
            ("batch?tab=json", "JSON", "What if", page.get_by_text("Counted").first, plot.first),
            ("curate?tab=history", "History", "Distributions", page.get_by_text("steps match").first, plot.nth(7)),
            ("curate?tab=history", "History", "Funnel", page.get_by_text("Funnel").last, page.get_by_text("In the plan")),
        ):
            self.open(path, "[data-testid=stButtonGroup]")
            for _ in range(self.repeat):
                self.label()
                self.timed(f"{tab} after a write", page.get_by_role("radio", name=tab).click, first, last)
                page.get_by_role("radio", name=other).click()
                last.wait_for(state="hidden")
                idle(page)

    def groups(self) -> None:
        """The list of prompt groups, after a write."""
        self.open("inspect", "[data-testid=stDataFrame] canvas")
        for _ in range(self.repeat):
            self.label()
            sign = self.page.get_by_text(re.compile(r"^[\d,]+–[\d,]+ of [\d,]+ prompt groups"))
            self.timed("prompt groups after a write", self.page.get_by_role("radio", name="Prompt groups").click, sign, sign)
            self.page.get_by_role("radio", name="Trajectories").click()
            self.page.get_by_text(re.compile(r"^[\d,]+–[\d,]+ of [\d,]+ trajectories")).wait_for()
            idle(self.page)

    def arrival(self) -> None:
        """Curate, and a filter there, after a new step has arrived."""
        first, last = self.signs()["Curate"]
        self.open("settings", ".cs-facts, .cs-table")
        for _ in range(self.repeat):
            self.arrive()
            self.timed("Curate after an arrival", self.link("Curate").click, first, last)
            self.link("Settings").click()
            self.page.get_by_role("heading", name="Settings").first.wait_for()
            idle(self.page)

    def query(self) -> None:
        """A query over all trajectories."""
        self.open("sql", ".cm-content")
        box = self.page.get_by_role("textbox", name="Query")
        for n in range(self.repeat):
            self.label()
            box.fill(QUERY.format(n))
            shown = self.page.get_by_text(re.compile(r"^\d+ rows? in "))
            before = shown.first.inner_text() if shown.count() else ""
            url = self.page.url
            self.timed("SQL query", lambda: (box.press("Control+Enter"), poll(lambda: self.page.url != url, before)), shown.first, shown.first)

    def rows(self) -> None:
        """The rows of a dataset version, the next page of them, and another order."""
        path = f"datasets?version={self.version}"
        self.open(path, "[data-testid=stDataFrame] canvas")
        for _ in range(self.repeat):
            self.label()
            sign = self.page.get_by_text(re.compile(r"^[\d,]+–[\d,]+ of [\d,]+ steps"))
            self.timed("dataset rows", self.page.get_by_role("radio", name="Rows").click, sign, sign)
            self.page.get_by_role("radio", name="About").click()
            sign.wait_for(state="hidden")
            idle(self.page)
        self.open(f"{path}&show=rows", "[data-testid=stDataFrame] canvas")
        for n in range(self.repeat):
            sign = self.page.get_by_text(f"{50 * (n + 1) + 1:,}–{50 * (n + 2):,} of")
            turn = self.page.get_by_role("button", name="Next page")
            self.timed("dataset rows: page turn", turn.click, sign, sign)

    def turns(self) -> None:
        """A trajectory of many turns: opened, its last step's messages and tokens, its transcript."""
        page = self.page
        for _ in range(self.repeat):
            self.open(f"inspect?trajectory={self.long}", "button.row.on")
            uid = page.locator("button.row").last.get_attribute("data-step")
            self.open("settings", ".cs-facts, .cs-table")
            self.open("inspect", "[data-testid=stDataFrame] canvas")
            table, place = page.get_by_test_id("stDataFrame").first, {"x": 80, "y": 36 + 14}
            rows, message = page.locator("button.row"), page.locator(".entry").first
            self.timed("2,000 turns: open", lambda: table.click(position=place), rows.first, message)
            last = page.locator(f"button.row[data-step='{uid}']")
            self.timed("2,000 turns: last step's messages", last.click, page.locator(f"button.row.on[data-step='{uid}']"), message)
            tokens = page.locator(".heading.response")
            self.timed("2,000 turns: tokens", page.get_by_role("radio", name="Tokens").first.click, tokens, tokens)
            self.timed("2,000 turns: messages", page.get_by_role("radio", name="Messages").first.click, message, message)
            turn = page.locator(".turn").first
            self.timed("2,000 turns: transcript", page.get_by_role("radio", name="Transcript").first.click, turn, turn)
