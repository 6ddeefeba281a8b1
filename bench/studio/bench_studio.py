"""Measures interactions in the studio on a million steps, in Chromium: from the click to the result.

    python bench/studio/bench_studio.py [--trajectories 20000] [--repeat 15] [--rest 40]

The pool is ``bench/pool/enrich.py``'s: 1,000,000 steps with tokens, messages, tools and labels, copied first, since
labels are written. ``bench/pool/long.py`` adds a trajectory of 2,000 turns and a dataset version of all steps. The
studio is left alone for ``--rest`` seconds first: it reads a big pool ahead once it is open. ``moves`` are common ones;
``pages`` are opened after a write, when no cached result counts: ``first_ms`` is the time to the first content, the
others are until the page is whole, ``cpu_ms`` is processor time of the studio. Writes bench/results/studio.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from playwright.sync_api import sync_playwright  # noqa: E402

from bench.pool.enrich import ensure_rich  # noqa: E402
from bench.pool.long import LONG, VERSION, add_long, freeze_all  # noqa: E402
from core.pool import Pool  # noqa: E402
from tests.browser.conftest import VIEWPORT, chromium_path, start_studio  # noqa: E402
from tests.browser.page_walk import PageWalk, summary  # noqa: E402
from tests.browser.walk import Walk, percentiles  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "studio.json"
GOAL_MS = 500


def group(n: int) -> str:
    """Prompt groups as ``bench/pool/generate.py`` names them."""
    return f"g{100 + n:05d}"


def step(n: int) -> str:
    """Steps as ``bench/pool/generate.py`` names them: one of another prompt group for each n, of the channel train."""
    return f"t{1000 + 160 * (n % 100):06d}.3"


def prepare(source: Path, path: Path) -> None:
    """Copy the pool, and add the long trajectory and the dataset version."""
    shutil.copyfile(source, path)
    pool = Pool.open(path, memory="4GB")
    add_long(pool)
    freeze_all(pool)
    pool.close()


def main() -> None:
    """Copy the pool, start the studio, walk, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trajectories", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--rest", type=float, default=40.0)
    given = parser.parse_args()
    source = ensure_rich(given.trajectories)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=source.parent) as folder:
        (Path(folder) / "data").mkdir()
        prepare(source, Path(folder) / "data" / "pool.duckdb")
        studio = start_studio(Path(folder), env={"CLAW_STUDIO_ENGINE": "http://127.0.0.1:9/v1"})
        try:
            time.sleep(given.rest)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
                page = browser.new_page(viewport=VIEWPORT)
                page.set_default_timeout(60_000)
                times = Walk(page, studio.url, given.repeat + 1, group).run()
                # The first of each reads from disk; later ones read from memory.
                moves = percentiles({name: values[1:] for name, values in times.items()})
                pages = summary(PageWalk(page, studio, given.repeat + 1, step, long=LONG, version=VERSION).run())
                chromium = browser.version
                browser.close()
        finally:
            studio.stop()
    results = {
        "n_steps": given.trajectories * 50,
        "goal_ms": GOAL_MS,
        "rest_s": given.rest,
        "moves": moves,
        "pages": pages,
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_before": round(load_before, 2),
        },
        "versions": {"chromium": chromium, **{name: version(name) for name in ("streamlit", "duckdb", "playwright")}},
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    for name, row in {**moves, **pages}.items():
        print(
            f"{name:32s} p50 {row['p50_ms']:7.1f}  p95 {row['p95_ms']:7.1f}  max {row['max_ms']:7.1f} ms  ({row['n']})"
        )


if __name__ == "__main__":
    main()
