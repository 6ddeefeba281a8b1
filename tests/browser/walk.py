"""The studio's everyday moves on a large pool, each timed from the click to what it brings, in a real browser.

Used by the browser test of a million steps and by ``bench/studio/bench_studio.py``.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from playwright.sync_api import Locator, Page

IDLE = "() => document.querySelector('[data-testid=stApp]').dataset.testScriptState === 'notRunning'"
ROW, HEAD = 29, 36


def idle(page: Page) -> None:
    """Wait until no script runs."""
    page.wait_for_function(IDLE)


def caption(page: Page) -> Locator:
    """``1–50 of 1,000,000 steps``: stands below a table, drawn after its rows."""
    return page.get_by_text(re.compile(r"^[\d,]+–[\d,]+ of [\d,]+ ")).first


def poll(come: Callable[[], Any], what: str) -> None:
    """Ask until it is so, every few milliseconds: Playwright's own waits look again after half a second."""
    deadline = time.monotonic() + 30
    while not come():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} after 30 s")
        time.sleep(0.004)


def changed(where: Locator, before: str) -> None:
    """Wait until a text is another."""
    poll(lambda: where.inner_text() != before, f"still {before!r}")


def appeared(where: Locator) -> None:
    """Wait until something is seen."""
    poll(where.is_visible, f"no {where}")


def timed(act: Callable[[], Any], arrived: Callable[[], Any]) -> float:
    """Milliseconds from the click to what it brings."""
    start = time.perf_counter()
    act()
    arrived()
    return 1e3 * (time.perf_counter() - start)


class Walk:
    """One browser page that goes through the studio; ``times`` holds milliseconds by move.

    ``group`` names the prompt group that is labelled the nth time; the steps have at least two agents.
    """

    def __init__(self, page: Page, url: str, repeat: int, group: Callable[[int], str]) -> None:
        self.page = page
        self.group = group
        self.url = url
        self.repeat = repeat
        self.times: dict[str, list[float]] = {}

    def run(self) -> dict[str, list[float]]:
        """Every move, ``repeat`` times."""
        for move in (self.page_turn, self.filtering, self.trajectory, self.tokens, self.label, self.review):
            move()
        return self.times

    def note(self, name: str, ms: float) -> None:
        """Keep one time."""
        self.times.setdefault(name, []).append(ms)

    def open(self, path: str, sign: str) -> None:
        """Load a page and let it settle; not timed."""
        self.page.goto(f"{self.url}/{path}")
        self.page.locator(sign).first.wait_for()
        idle(self.page)

    def page_turn(self) -> None:
        """The next page of a million steps."""
        self.open("inspect?level=steps", "[data-testid=stDataFrame]")
        for _ in range(self.repeat):
            before = caption(self.page).inner_text()
            turn = self.page.get_by_role("button", name="Next page")
            self.note("page turn", timed(turn.click, partial(changed, caption(self.page), before)))
            idle(self.page)

    def filtering(self) -> None:
        """A facet's value on and off."""
        self.open("inspect?level=steps", "button.value")
        value = self.page.locator("button.value[data-facet=agent]").first
        for _ in range(self.repeat):
            before = caption(self.page).inner_text()
            self.note("filter", timed(value.click, partial(changed, caption(self.page), before)))
            idle(self.page)

    def trajectory(self) -> None:
        """From a row of the table to the trajectory's steps, then from step to step."""
        for n in range(self.repeat):
            self.open("inspect", "[data-testid=stDataFrame] canvas")
            table = self.page.get_by_test_id("stDataFrame").first
            place = {"x": 80, "y": HEAD + ROW * (n % 15) + 14}
            rows = self.page.locator("button.row")
            self.note("open a trajectory", timed(partial(table.click, position=place), partial(appeared, rows.first)))
            idle(self.page)
        chosen = self.page.locator("button.row.on")
        following = self.page.locator(".st-key-next button:enabled")
        for _ in range(self.repeat):
            following.wait_for()
            before = chosen.get_attribute("data-step")
            there = partial(self.other_step, chosen, before)
            self.note("next step", timed(partial(self.page.keyboard.press, "j"), there))
            idle(self.page)

    @staticmethod
    def other_step(chosen: Locator, before: str | None) -> None:
        """Wait until another step is the chosen one."""
        poll(lambda: chosen.get_attribute("data-step") != before, f"still step {before}")

    def tokens(self) -> None:
        """The tokens of a late step, whose context is the longest."""
        uid = self.page.locator("button.row").last.get_attribute("data-step")
        for _ in range(self.repeat):
            self.open(f"inspect?step={uid}", "button.row.on")
            tab = self.page.get_by_role("radio", name="Tokens")
            shown = self.page.locator(".heading.response")
            self.note("token view", timed(tab.first.click, partial(appeared, shown)))
            idle(self.page)

    def label(self) -> None:
        """All that a filter matches labelled in one entry, then that entry taken back."""
        for n in range(self.repeat):
            self.open(f"curate?prompt_uid={self.group(n)}", ".st-key-apply")
            self.page.get_by_text(re.compile(r"^All [\d,]+ matching$")).click()
            ready = self.page.get_by_role("button", name=re.compile(r"Apply to [1-9][\d,]* trajectories"))
            ready.wait_for()
            idle(self.page)
            toast = self.page.get_by_test_id("stToast").last
            self.note("bulk label", timed(ready.click, partial(appeared, toast)))
            idle(self.page)
            self.open("curate?tab=history", ".st-key-undo-last")
            redo = self.page.locator(".st-key-redo-last button:enabled")
            undo = self.page.get_by_role("button", name="Undo the last")
            self.note("undo", timed(undo.click, partial(appeared, redo)))
            idle(self.page)

    def review(self) -> None:
        """A verdict by key, and the next item."""
        self.open("curate?tab=review&order=outliers", ".st-key-review-good button:enabled")
        self.page.wait_for_timeout(500)
        item = self.page.locator(".st-key-review-item code").first
        for _ in range(self.repeat):
            before = item.inner_text()
            press = partial(self.page.keyboard.press, "g")
            self.note("review: verdict and next", timed(press, partial(changed, item, before)))
            idle(self.page)


def percentiles(times: dict[str, Iterable[float]]) -> dict[str, dict[str, float]]:
    """Move -> n, p50, p95 and the longest, in milliseconds."""
    summary = {}
    for name, values in times.items():
        ordered = sorted(values)
        rank = min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))
        summary[name] = {
            "n": len(ordered),
            "p50_ms": round(statistics.median(ordered), 1),
            "p95_ms": round(ordered[rank], 1),
            "max_ms": round(ordered[-1], 1),
        }
    return summary
