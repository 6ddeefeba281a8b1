"""Pages of a large pool, opened after a write, when no cached result counts; timed until they are whole.

Used by the browser test of a million steps and by ``bench/studio/bench_studio.py``. Before each move one step is
labelled, or one arrives, through the API; the click comes when that write is in the pool.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page

from core.client import StudioClient
from tests.browser.conftest import Studio
from tests.browser.walk import HEAD, IDLE, ROW, appeared, caption, idle, percentiles, poll

TICKS_S = 0.01
"""A tick of the kernel's processor clock."""
SETTINGS, TABLE, MESSAGE = ".cs-facts, .cs-table", "[data-testid=stDataFrame]", "article.card"
QUERY = "SELECT agent, step_index, count(*) AS n, avg(reward) AS mean FROM steps GROUP BY ALL ORDER BY n LIMIT {}"


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


def summary(times: Mapping[str, Times]) -> dict[str, dict[str, float]]:
    """Move -> n, p50, p95 and the longest time until it was whole; medians of ``first_ms`` and ``cpu_ms``.

    The first repetition of each is left out: it reads from disk.
    """
    rows = percentiles({name: each.whole[1:] for name, each in times.items()})
    for name, each in times.items():
        more = {"first_ms": each.first[1:], "cpu_ms": each.cpu[1:]}
        rows[name] |= {key: round(statistics.median(values), 1) for key, values in more.items()}
    return rows


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
        step = {
            "step_uid": uid,
            "trajectory_uid": uid,
            "prompt_uid": "arrived",
            "step_index": 0,
            "response_ids": [1, 2],
        }
        self.client.submit([{**step, "created_at": 1_600_000_000.0 + number}])
        poll(lambda: uid in self.client.known([uid]), f"{uid} is not stored")

    def timed(self, name: str, act: Callable[[], Any], first: Locator, last: Locator) -> None:
        """Note the time from the click to the first content, and until the last is there and no script runs."""
        before, start = processor_ms(self.studio.process.pid), time.perf_counter()
        act()
        appeared(first)
        shown = time.perf_counter()
        appeared(last)
        poll(lambda: self.page.evaluate(IDLE.replace("() => ", "")), "a script still runs")
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
        table, figures = page.locator(f"{TABLE} canvas").first, page.locator(".cs-figs").first
        return {
            "Overview": (figures, page.locator(".st-key-panel-token_source .cs-bars")),
            "Inspect": (table, caption(page)),
            "Curate": (table, page.get_by_text("Active plan:").first),
            "Batch": (figures, table),
        }

    def pages(self) -> None:
        """Each page from another one, after a write."""
        self.open("settings", SETTINGS)
        for title, (first, last) in self.signs().items():
            for _ in range(self.repeat):
                self.label()
                self.timed(f"{title} after a write", self.link(title).click, first, last)
                self.leave()

    def leave(self) -> None:
        """Go to a page that reads little."""
        self.link("Settings").click()
        self.page.locator(SETTINGS).first.wait_for()
        idle(self.page)

    def tabs(self) -> None:
        """Tabs that compute over the whole pool, after a write."""
        page = self.page
        plot, text = page.locator(".js-plotly-plot"), page.get_by_text
        last_histogram = page.locator("[class*='st-key-hist-step_index'] .js-plotly-plot")
        for path, other, tab, first, last in (
            ("batch?tab=json", "JSON", "Estimators", page.locator(".cs-figs").first, plot.first),
            ("batch?tab=json", "JSON", "What if", page.locator(".cs-figs").first, plot.first),
            ("curate?tab=history", "History", "Distributions", text("steps match").first, last_histogram),
            ("curate?tab=history", "History", "Funnel", text("candidate steps").first, text("In the plan").first),
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
        page = self.page
        self.open("inspect", TABLE)
        sign, other = (
            page.get_by_text(re.compile(rf"^[\d,]+–[\d,]+ of [\d,]+ {n}")) for n in ("prompt groups", "traj")
        )
        for _ in range(self.repeat):
            self.label()
            move = page.get_by_role("radio", name="Prompt groups")
            self.timed("prompt groups after a write", move.click, sign, sign)
            page.get_by_role("radio", name="Trajectories").click()
            other.wait_for()
            idle(page)

    def arrival(self) -> None:
        """Curate after a new step has arrived."""
        first, last = self.signs()["Curate"]
        self.open("settings", SETTINGS)
        for _ in range(self.repeat):
            self.arrive()
            self.timed("Curate after an arrival", self.link("Curate").click, first, last)
            self.leave()

    def query(self) -> None:
        """A query over all steps."""
        self.open("sql", ".cm-content")
        box = self.page.get_by_role("textbox", name="Query")
        for n in range(self.repeat):
            self.label()
            box.fill(QUERY.format(n + 2))
            sign = self.page.get_by_text(re.compile(rf"^{n + 2} rows? in "))
            self.timed("SQL query", partial(box.press, "Control+Enter"), sign, sign)

    def rows(self) -> None:
        """The rows of a dataset version, and their next page."""
        page, path = self.page, f"datasets?version={self.version}"
        self.open(path, TABLE)
        sign = page.get_by_text(re.compile(r"^[\d,]+–[\d,]+ of [\d,]+ steps"))
        for _ in range(self.repeat):
            self.label()
            self.timed("dataset rows", page.get_by_role("radio", name="Rows").click, sign, sign)
            page.get_by_role("radio", name="About").click()
            sign.wait_for(state="hidden")
            idle(page)
        self.open(f"{path}&show=rows", TABLE)
        for n in range(1, self.repeat + 1):
            sign = page.get_by_text(f"{50 * n + 1:,}–{50 * (n + 1):,} of")
            turn = page.get_by_role("button", name="Next page")
            self.timed("dataset rows: page turn", turn.click, sign, sign)

    def turns(self) -> None:
        """A trajectory of many turns: opened, its last step's messages and tokens, its transcript."""
        page = self.page
        self.open(f"inspect?trajectory={self.long}", "button.row.on")
        uid = page.locator("button.row").last.get_attribute("data-step")
        rows, message, tokens = page.locator("button.row"), page.locator(MESSAGE), page.locator(".heading.response")
        last, on = (page.locator(f"button.row{mark}[data-step='{uid}']") for mark in ("", ".on"))
        turn, table = page.locator("section.turn"), page.get_by_test_id("stDataFrame").first
        for _ in range(self.repeat):
            self.open("inspect", f"{TABLE} canvas")
            to_first = partial(table.click, position={"x": 80, "y": HEAD + ROW // 2})
            self.timed("long trajectory: open", to_first, rows.first, message.first)
            self.timed("long trajectory: last step", last.click, on, message.first)
            for name, sign in (("Tokens", tokens), ("Messages", message.first), ("Transcript", turn.first)):
                move = page.get_by_role("radio", name=name)
                self.timed(f"long trajectory: {name.lower()}", move.first.click, sign, sign)
