"""Fixtures: a studio started as users start it, and a Chromium that fails the test on any console error."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from core.client import StudioClient
from tests.browser.odd_data import odd_steps
from tests.conftest import eventually, user_environment
from tests.left_out import missing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Locator, Page

ROOT = Path(__file__).resolve().parents[2]
VIEWPORT = {"width": 1440, "height": 900}
START_TIMEOUT_S = 150.0
PATIENCE_MS = 60_000
IN_EVERY_RUN = {"test_first_minutes.py", "test_frame.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder drives a browser; the first minutes with the studio belong to ``make test``."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if item.path.name not in IN_EVERY_RUN:
                item.add_marker(pytest.mark.beyond)


def chromium_path() -> str | None:
    """The browser to drive: ``$CHROMIUM``, or the first known name on the path."""
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One Chromium for the run."""
    path = chromium_path()
    if path is None:
        missing("no Chromium on this machine: the browser tests did not run (install chromium, or set CHROMIUM)")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=2 * PATIENCE_MS)
        yield launched
        launched.close()


def free_port() -> int:
    """A port that is free, and below those that the system hands out to tests beside until it is listened on."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class Studio:
    """A running ``streamlit run studio``: the address of its pages and of its gateway, and its data folder."""

    url: str
    gateway_url: str
    data_dir: Path
    log_path: Path
    process: subprocess.Popen[bytes] = field(repr=False)

    @property
    def log(self) -> str:
        """What it printed so far."""
        return self.log_path.read_text(errors="replace")

    def stop(self) -> int:
        """SIGTERM, as a shell or a supervisor sends it; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def start_studio(folder: Path, *, env: dict[str, str] | None = None, gateway: bool = True) -> Studio:
    """Start the studio on free ports with its data below ``folder``; waits until pages and ``gateway`` answer."""
    port, gateway_port = free_port(), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / "studio.log"
    command = [sys.executable, "-m", "streamlit", "run", "studio", "--server.port", str(port)]
    settings = {
        "CLAW_STUDIO_DATA_DIR": str(folder / "data"),
        "CLAW_STUDIO_PORT": str(gateway_port),
        "CLAW_STUDIO_CONFIG": str(folder / "studio.toml"),
        "STREAMLIT_SERVER_FILE_WATCHER_TYPE": "none",
    }
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=user_environment({**settings, **(env or {})})
        )
    studio = Studio(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{gateway_port}", folder / "data", log_path, process)

    def answers() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"the studio ended with {process.returncode}:\n{studio.log}")
        try:
            if gateway:
                socket.create_connection(("127.0.0.1", gateway_port), 2).close()
            return httpx.get(f"{studio.url}/_stcore/health", timeout=2).is_success
        except (OSError, httpx.TransportError):
            return False

    try:
        eventually(answers, timeout_s=START_TIMEOUT_S, every_s=0.2)
    except BaseException:
        process.kill()
        process.wait(30)
        raise
    return studio


@pytest.fixture
def studio(tmp_path: Path, browser: Browser) -> Iterator[Studio]:
    """A studio with an empty data folder of its own."""
    running = start_studio(tmp_path)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def shared_studio(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Studio]:
    """One studio for a module's tests, for those that only look."""
    running = start_studio(tmp_path_factory.mktemp("studio"))
    yield running
    running.stop()


@pytest.fixture(scope="package")
def demo(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[tuple[Studio, StudioClient]]:
    """A studio with the demo data and ``odd_steps``, and a client of its API; one for all tests that use it."""
    running = start_studio(tmp_path_factory.mktemp("demo"))
    page = browser.new_page()
    page.goto(running.url)
    page.get_by_role("button", name="Load demo data").click()
    page.locator(".js-plotly-plot").first.wait_for(timeout=120_000)
    page.close()
    client = StudioClient(running.gateway_url)
    client.submit(odd_steps())
    yield running, client
    running.stop()


def settled_box(where: Locator, *, still_s: float = 0.5) -> dict[str, float]:
    """Where something stands once it holds still: plots are drawn in steps, and pages grow above them."""
    seen: tuple[Any, float] = (None, 0.0)

    def settled() -> Any:
        nonlocal seen
        box = where.bounding_box()
        if box is None or box != seen[0]:
            seen = (box, time.monotonic())
        return box if time.monotonic() - seen[1] >= still_s else None

    return eventually(settled)


class Watched:
    """A browser page that remembers everything that went wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(f"page exception: {error}"))
        page.on("console", self._console)

    def _console(self, message) -> None:
        if message.type != "error":
            return
        address = (message.location or {}).get("url", "")
        self.problems.append(f"console error: {message.text} ({address})")

    def check(self) -> None:
        """Fail on what the console, the page and Streamlit's own error boxes reported."""
        shown = self.page.locator("[data-testid=stException], .cs-callout.bad").all_inner_texts()
        assert not self.problems and not shown, "\n".join([*self.problems, *shown])


@pytest.fixture
def watch(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Open browser pages (``watch(url, color_scheme="dark")``); each is checked when the test ends."""
    contexts: list[BrowserContext] = []
    pages: list[Watched] = []

    def open_one(url: str, *, color_scheme: str = "light") -> Watched:
        context = browser.new_context(viewport=VIEWPORT, color_scheme=color_scheme)
        contexts.append(context)
        watched = Watched(context.new_page())
        pages.append(watched)
        watched.page.set_default_timeout(PATIENCE_MS)
        watched.page.goto(url)
        watched.page.wait_for_selector(".cs-head")
        return watched

    yield open_one
    try:
        for watched in pages:
            watched.check()
    finally:
        for context in contexts:
            context.close()
