"""Measures the start of the studio: from the command to the first page, what it imports, and what is installed.

    python bench/studio/bench_start.py [--rounds 7]

Each round starts ``streamlit run studio`` (what ``make studio`` runs once it is installed) on an empty data folder and
opens Overview in a Chromium that is already running; the time ends when the page's head is drawn. The first round warms
the file cache, compiles the modules and is not counted. Imports are the interpreter's own account
(``PYTHONPROFILEIMPORTTIME``) of one more start, summed by package. Writes bench/results/start.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from playwright.sync_api import Browser, sync_playwright  # noqa: E402

from tests.browser.conftest import VIEWPORT, Studio, chromium_path, start_studio  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "start.json"
GOAL_S = 3.0
N_PACKAGES = 12
NOT_AT_START = ("torch", "transformers", "litellm")
"""Packages that no start may import."""
KEPT = {"PYTHONDONTWRITEBYTECODE": ""}
"""Compiled modules are kept whatever the shell says, as ``make studio`` keeps them."""
_IMPORT = re.compile(r"import time:\s+(?P<own_us>\d+) \|\s+\d+ \|\s*(?P<name>\S+)")


def cpu_s(pid: int) -> float:
    """Processor time of a process and its children so far, seconds."""
    ticks, pids = 0, [pid]
    for one in pids:
        pids += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
        ticks += sum(map(int, Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def first_page(browser: Browser, folder: Path) -> dict[str, float]:
    """Seconds from the command until the server answers and until Overview is drawn, and the processor time of both."""
    began = time.perf_counter()
    studio: Studio = start_studio(folder, env=KEPT, gateway=False)
    answered_s = time.perf_counter() - began
    page = browser.new_page(viewport=VIEWPORT)
    try:
        page.goto(studio.url)
        page.locator(".cs-head").wait_for()
        drawn_s = time.perf_counter() - began
        return {"answered_s": answered_s, "first_page_s": drawn_s, "cpu_s": cpu_s(studio.process.pid)}
    finally:
        page.close()
        studio.stop()


def imports(browser: Browser, folder: Path) -> dict[str, Any]:
    """Milliseconds of importing by package, as the interpreter of the studio's own process reports them."""
    studio = start_studio(folder, env={**KEPT, "PYTHONPROFILEIMPORTTIME": "1"})
    page = browser.new_page(viewport=VIEWPORT)
    page.goto(studio.url)
    page.locator(".cs-head").wait_for()
    page.close()
    studio.stop()
    spent: Counter[str] = Counter()
    for line in studio.log.splitlines():
        if (match := _IMPORT.match(line)) is not None:
            spent[match["name"].partition(".")[0]] += int(match["own_us"])
    return {
        "all_ms": round(sum(spent.values()) / 1e3),
        "by_package_ms": {name: round(us / 1e3) for name, us in spent.most_common(N_PACKAGES)},
        "not_at_start": {name: name in spent for name in NOT_AT_START},
    }


def installed_mb() -> dict[str, int]:
    """Megabytes of the environment, and of its largest packages."""
    purelib = Path(sysconfig.get_paths()["purelib"])
    sizes: Counter[str] = Counter()
    for folder, _, names in os.walk(purelib):
        top = Path(folder).relative_to(purelib).parts[:1]
        sizes[top[0] if top else "files"] += sum(os.lstat(Path(folder, name)).st_size for name in names)
    return {"all": sum(sizes.values()) // 10**6, **{name: n // 10**6 for name, n in sizes.most_common(8)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        rounds = [first_page(browser, folder / str(number)) for number in range(options.rounds + 1)][1:]
        imported = imports(browser, folder / "imports")
        browser.close()
    document = {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpus": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
            "load_before": round(load, 2),
            "load_after": round(os.getloadavg()[0], 2),
        },
        "goal_s": GOAL_S,
        "median": {what: round(statistics.median(one[what] for one in rounds), 2) for what in rounds[0]},
        "first_page_s_of_rounds": [round(one["first_page_s"], 2) for one in rounds],
        "imports": imported,
        "installed_mb": installed_mb(),
    }
    RESULTS.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
