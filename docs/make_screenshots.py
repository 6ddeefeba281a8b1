"""Make the screenshots of the docs: ``python docs/make_screenshots.py [FOLDER] [--only NAME ...]``.

Two studios are opened with Chromium, 1440 × 900 pixels, light and dark. One has the demo data and what
``tests/browser/filled.py`` adds to it. The other one has seeded prompt groups for Optimise: 4 × 50 steps that the
shipped tokenizer reads, and a tree of 32,768 tokens. The pictures have a palette of 256 colours.

Not made here: Learn and Cluster, which show a finished run and a running cluster, and the proof of a checker.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ViewportSize

VIEWPORT: ViewportSize = {"width": 1440, "height": 900}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
COLOURS = 256
LIVE_MS = 8_000
TABLE, CHART = "[data-testid=stDataFrame] canvas", ".js-plotly-plot"
EMPTY = {"start": ("", "text=Load demo data")}
FILLED = {
    "overview": ("", CHART),
    "tasks": ("tasks", TABLE),
    "task-attempts": ("tasks?task=demo_005&tab=attempts", ".cs-table"),
    "synthesis": ("synthesis?stage=validation_code", TABLE),
    "rollouts": ("rollouts?run=run-1", TABLE),
    "inspect": ("inspect?agent=demo-agent", TABLE),
    "inspect-step": ("inspect?trajectory={trajectory}&tab=tokens", ".heading.response"),
    "inspect-transcript": ("inspect?trajectory={trajectory}&tab=transcript", ".cs-figs"),
    "inspect-group": ("inspect?group=demo-fix-typos", ".cs-figs"),
    "runs": ("inspect?runs=base&runs=tuned", ".cs-table"),
    "curate": ("curate?agent=demo-agent", TABLE),
    "review": ("curate?tab=review&agent=demo-agent", ".cs-review"),
    "datasets": ("datasets?tab=versions&version=redacted&show=rows", TABLE),
    "sql": ("sql?q={query}", TABLE),
    "batch": ("batch?agent=demo-agent", TABLE),
    "export": ("batch?tab=export&agent=demo-agent", ".cs-figs"),
    "consume": ("consume", TABLE),
    "settings": ("settings", ".cs-table"),
}
LIVE = {"collect": ("collect", TABLE)}
"""Taken seconds after the demo agent was started."""
OPTIMISE = {
    "optimise-tree": ("optimise?show=sales&node=0", "canvas[aria-label^='Prefix tree'][data-drawn]"),
    "optimise-mask": ("optimise?show=deep&tab=mask", "canvas[aria-label^='Attention mask of'][data-drawn]"),
    "optimise-rows": ("optimise?tab=rows", ".cs-figs"),
}
QUERY = (
    "SELECT prompt_uid, count(*) AS attempts, avg(reward) AS mean_reward, avg(n_steps) AS steps\n"
    "FROM trajectories WHERE agent = 'demo-agent'\nGROUP BY prompt_uid ORDER BY mean_reward DESC"
)


def long_group(n_rollouts: int = 4, n_steps: int = 50) -> tuple[list[Any], list[dict[str, Any]]]:
    """Rollouts of one task that read, count and write; one of them is re-encoded halfway."""
    from core.serving.tokenizer import load_tokenizer, tokenizer_hash
    from core.types import Step

    chance = random.Random(7)
    tokenizer, hashed = load_tokenizer(), tokenizer_hash()
    opening = (
        "You are a careful agent in a small workspace. Use one tool at a time. Sum the column 'amount' of each file in "
        "data/ and write the totals, one line per file, to totals.txt.\n"
    )
    steps: list[Any] = []
    done = []
    for r in range(n_rollouts):
        context = tokenizer.encode(opening)
        words = random.Random(3)  # the attempts begin alike, and part where their own chance takes over
        parts = chance.choice((2, 5, 9))
        shared = 0
        for k in range(n_steps):
            draw = words if k < parts else chance
            name = draw.choice(("read_file", "list_files", "count", "write_file"))
            said = tokenizer.encode(f"<call>{name} data/{draw.choice('abcdef')}{draw.randint(0, 99)}.csv</call>")
            drift = r == 2 and k == 30
            if drift:
                shared = len(context) // 2
                context = context[:shared] + context[shared + 1 :]
            steps.append(
                Step(
                    step_uid=f"sales-{r}.{k}",
                    trajectory_uid=f"sales-{r}",
                    prompt_uid="sales",
                    step_index=k,
                    created_at=1_790_000_000.0 + 100 * r + k,
                    agent="demo-agent",
                    model="demo-policy",
                    token_source="engine",
                    tokenizer_hash=hashed,
                    prompt_ids=list(context),
                    response_ids=said,
                    response_logprobs=[-0.4 * draw.random() for _ in said],
                    parent_step_uid=f"sales-{r}.{k - 1}" if k else None,
                    n_shared_tokens=shared if k else 0,
                    transition=("realigned" if drift else "extends") if k else None,
                    policy_version=3 + k // 25,
                )
            )
            seen = tokenizer.encode(f"\n{draw.randint(100, 999)} rows, total {draw.randint(10, 99)}.{k:02d}\n")
            shared = len(context) + len(said)
            context = context + said + seen
        done.append({"kind": "complete", "trajectory_uid": f"sales-{r}", "reward": (1.0, 0.0, 0.5, 1.0)[r % 4]})
    return steps, done


def photograph(browser: Browser, url: str, shots: Mapping[str, tuple[str, str]], folder: Path) -> None:
    """Write ``NAME-SCHEME.png`` of each address; a picture is taken when the selector is there and no script runs."""
    from PIL import Image

    from tests.browser.walk import idle

    for scheme in SCHEMES:
        context = browser.new_context(viewport=VIEWPORT, color_scheme=scheme, reduced_motion="reduce")
        page = context.new_page()
        for name, (address, sign) in shots.items():
            page.goto("about:blank")
            page.goto(f"{url}/{address}")
            page.locator(sign).first.wait_for()
            idle(page)
            page.wait_for_timeout(1500)  # plotly fades in
            path = folder / f"{name}-{scheme}.png"
            page.screenshot(path=str(path))
            with Image.open(path) as taken:
                taken.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
            print(f"{path} {path.stat().st_size // 1024} KiB", flush=True)
        context.close()


def photograph_filled(browser: Browser, chosen: set[str], folder: Path, home: Path) -> None:
    """The empty studio, then the same one with data."""
    from core.client import StudioClient
    from tests.browser.conftest import start_studio
    from tests.browser.filled import fill

    studio = start_studio(home)
    try:
        photograph(browser, studio.url, _only(EMPTY, chosen), folder)
        page = browser.new_page()
        page.goto(studio.url)
        page.get_by_role("button", name="Load demo data").click()
        page.locator(CHART).first.wait_for(timeout=120_000)
        page.close()
        client = StudioClient(studio.gateway_url)
        fill(studio.data_dir, client, odd=False)
        steps = client.call("GET", "/api/v1/steps?limit=1000")["steps"]
        trajectory = next(step["trajectory_uid"] for step in steps if step["prompt_uid"] == "demo-fix-typos")
        known = {"trajectory": trajectory, "query": quote(QUERY)}
        shots = {name: (address.format(**known), sign) for name, (address, sign) in FILLED.items()}
        photograph(browser, studio.url, _only(shots, chosen), folder)
        if chosen & set(LIVE):
            page = browser.new_page()
            page.goto(f"{studio.url}/collect")
            page.get_by_role("button", name="Run the demo agent live").first.click()
            page.wait_for_timeout(LIVE_MS)
            page.close()
            photograph(browser, studio.url, LIVE, folder)
    finally:
        studio.stop()


def photograph_optimise(browser: Browser, chosen: set[str], folder: Path, home: Path) -> None:
    """A studio with the seeded groups."""
    from core.pool import Pool
    from tests.browser.conftest import start_studio
    from tests.browser.test_big_tree import group

    (home / "data").mkdir(parents=True)
    pool = Pool.open(home / "data" / "pool.duckdb")
    for steps, done in (long_group(), group("deep", 16, 20, 768, 100, 1)):
        pool.steps.append(steps, completions=done)
    pool.close()
    studio = start_studio(home, env={"CLAW_STUDIO_ENGINE": "http://127.0.0.1:9/v1"})
    try:
        photograph(browser, studio.url, _only(OPTIMISE, chosen), folder)
    finally:
        studio.stop()


def _only(shots: Mapping[str, tuple[str, str]], chosen: set[str]) -> dict[str, tuple[str, str]]:
    return {name: shot for name, shot in shots.items() if name in chosen}


def main() -> None:
    """Open, look, write the pictures."""
    from playwright.sync_api import sync_playwright

    from tests.browser.conftest import chromium_path

    every = [*EMPTY, *FILLED, *LIVE, *OPTIMISE]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs" / "screenshots")
    parser.add_argument("--only", nargs="+", choices=every, default=every, help="these pictures alone")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    chosen = set(arguments.only)
    with tempfile.TemporaryDirectory(prefix="claw-studio-") as name, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        if chosen & {*EMPTY, *FILLED, *LIVE}:
            photograph_filled(browser, chosen, arguments.folder, Path(name) / "filled")
        if chosen & set(OPTIMISE):
            photograph_optimise(browser, chosen, arguments.folder, Path(name) / "optimise")
        browser.close()


if __name__ == "__main__":
    main()
