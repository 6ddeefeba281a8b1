"""Measures common interactions in the studio on a million steps, in Chromium: from the click to the result.

    python bench/studio/bench_studio.py [--trajectories 20000] [--repeat 15] [--rest 40]

The pool is ``bench/pool/enrich.py``'s: 1,000,000 steps with tokens, messages, tools and labels, copied first, since
labels are written. The studio is left alone for ``--rest`` seconds first: it reads a big pool ahead once it is open.
Writes bench/results/studio.json.
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
from tests.browser.conftest import VIEWPORT, chromium_path, start_studio  # noqa: E402
from tests.browser.walk import Walk, percentiles  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "studio.json"
GOAL_MS = 500


def group(n: int) -> str:
    """Prompt groups as ``bench/pool/generate.py`` names them."""
    return f"g{100 + n:05d}"


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
        shutil.copyfile(source, Path(folder) / "data" / "pool.duckdb")
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
                chromium = browser.version
                browser.close()
        finally:
            studio.stop()
    results = {
        "n_steps": given.trajectories * 50,
        "goal_ms": GOAL_MS,
        "rest_s": given.rest,
        "moves": moves,
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_before": round(load_before, 2),
        },
        "versions": {"chromium": chromium, **{name: version(name) for name in ("streamlit", "duckdb", "playwright")}},
    }
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    for name, row in moves.items():
        print(
            f"{name:26s} p50 {row['p50_ms']:7.1f}  p95 {row['p95_ms']:7.1f}  max {row['max_ms']:7.1f} ms  ({row['n']})"
        )


if __name__ == "__main__":
    main()
