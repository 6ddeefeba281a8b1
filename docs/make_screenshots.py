"""Make the screenshots of the Optimise page: ``python docs/make_screenshots.py [FOLDER] [--dark]``.

A studio is opened on seeded data (a prompt group of 4 × 50 steps that the shipped tokenizer reads, and one whose tree
is 32,768 tokens long) and looked at with Chromium, light theme, 1440 × 900.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

VIEWPORT = {"width": 1440, "height": 900}
STATES = {
    "optimise-tree": ("optimise?show=sales&node=0", "Prefix tree"),
    "optimise-mask": ("optimise?show=deep&tab=mask", "Attention mask of"),
    "optimise-rows": ("optimise?tab=rows", None),
    "optimise-savings": ("optimise?tab=groups", None),
    "optimise-drift": ("optimise?show=sales", "Prefix tree"),
}
SHIPPED = ("optimise-tree", "optimise-mask", "optimise-rows")


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


def main() -> None:
    """Open, look, write the pictures."""
    from playwright.sync_api import sync_playwright

    from core.pool import Pool
    from tests.browser.conftest import chromium_path, start_studio
    from tests.browser.test_big_tree import group

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs" / "screenshots")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--all", action="store_true", help="states that the docs don't show, too")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        pool = Pool.open(folder / "data" / "pool.duckdb")
        for steps, done in (long_group(), group("deep", 16, 20, 768, 100, 1)):
            pool.steps.append(steps, completions=done)
        pool.close()
        studio = start_studio(folder, env={"CLAW_STUDIO_ENGINE": "http://127.0.0.1:9/v1"})
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
                scheme = "dark" if arguments.dark else "light"
                page = browser.new_context(viewport=VIEWPORT, color_scheme=scheme).new_page()
                for shot in STATES if arguments.all else SHIPPED:
                    address, drawing = STATES[shot]
                    page.goto(f"{studio.url}/{address}")
                    page.wait_for_selector(".cs-figs")
                    if drawing is not None:
                        page.wait_for_selector(f"canvas[aria-label^='{drawing}'][data-drawn]")
                    page.wait_for_selector("[data-testid=stStatusWidget]", state="detached")
                    page.wait_for_timeout(1500)  # plotly fades in
                    path = arguments.folder / f"{shot}-{scheme}.png"
                    page.screenshot(path=str(path))
                    print(f"{path} {path.stat().st_size // 1024} KiB")
                browser.close()
        finally:
            studio.stop()


if __name__ == "__main__":
    main()
