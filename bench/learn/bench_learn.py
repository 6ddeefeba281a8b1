"""Measures the learning demo: held-out success by version for several seeds, each with its shuffled control.

    python bench/learn/bench_learn.py [--seeds 0 1 2 3 4] [--updates 15] [--no-control]

Each seed is one ``claw-studio demo --learn`` on an empty data folder. Success and bands are those of
``GET /api/v1/learning``, read from the finished folder. Writes bench/results/learn.json after each seed, then
docs/learning.svg. Seeds that the file already holds with these settings are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.tree.common import machine  # noqa: E402
from core.batch.learning import updates  # noqa: E402
from core.pool import Pool  # noqa: E402
from core.pool.learning import curves  # noqa: E402
from core.tasks.learn import TRAIN_CHANNEL  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "learn.json"
FIGURE = ROOT / "docs" / "learning.svg"
COLOURS = {"held-out": "#0b7a75", "control": "#b4552d"}


def run_seed(seed: int, n_updates: int, control: bool) -> dict[str, Any]:
    """One seed, and its control if asked, in a new folder."""
    with tempfile.TemporaryDirectory(prefix="claw-bench-") as folder:
        command = [sys.executable, "-m", "core.cli", "demo", "--learn", "--json", "--data", folder]
        command += ["--seed", str(seed), "--updates", str(n_updates), *(["--control", "shuffle"] if control else [])]
        began, load = time.monotonic(), os.getloadavg()[0]
        run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        seconds = time.monotonic() - began
        events = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        return {
            "seed": seed,
            "wall_s": round(seconds, 1),
            "load_at_start": round(load, 1),
            "runs": of_folder(Path(folder), events),
        }


def of_folder(folder: Path, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The run and its control: held-out points with bands, greedy success, seconds of the updates."""
    pool = Pool.open(folder / "pool.duckdb")
    try:
        drawn = curves(pool.learning.by_version(), pool.learning.runs())
        made = updates(pool, TRAIN_CHANNEL)
    finally:
        pool.close()
    result = []
    for run in [one for one in events if one["event"] == "run"]:
        points = {
            curve["channel"]: [
                [update, point.n_trajectories, *(round(x, 4) for x in (point.mean, point.low or 0, point.high or 0))]
                for point, update in curve["points"]
            ]
            for curve in drawn
            if curve["run"].name == run["name"]
        }
        mine = [one for one in made if one.consumer == run["name"]]
        result.append(
            {
                "name": run["name"],
                "control": run["control"],
                "held_out": points[run["val"]],
                "greedy": points[run["greedy"]],
                "training": points[run["train"]],
                "update_s": [round(one.seconds or 0.0, 2) for one in mine],
                "stages_s": [{name: round(x, 3) for name, x in one.stages.items()} for one in mine],
                "logprob_difference_mean": [one.metrics.get("logprob_difference_mean") for one in mine],
            }
        )
    return result


def figure(rows: Sequence[dict[str, Any]]) -> str:
    """Held-out success over updates as SVG: a line per seed, the controls dashed."""
    width, height, left, bottom, top = 720, 320, 46, 36, 14
    last = max(point[0] for row in rows for run in row["runs"] for point in run["held_out"])

    def place(update: float, share: float) -> str:
        x = left + (width - left - 12) * update / last
        return f"{x:.1f},{top + (height - bottom - top) * (1 - share):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        y = place(0, share).split(",")[1]
        parts.append(f'<line x1="{left}" x2="{width - 12}" y1="{y}" y2="{y}" stroke="#dde2e9"/>')
        parts.append(f'<text x="{left - 6}" y="{float(y) + 4:.1f}" text-anchor="end" fill="#5b6676">{share:.0%}</text>')
    for update in range(0, last + 1, 2):
        x = place(update, 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{height - 18}" text-anchor="middle" fill="#5b6676">{update}</text>')
    middle = f'x="{width / 2}" text-anchor="middle" fill="#5b6676"'
    parts.append(
        f'<text {middle} y="{height - 3}">updates; held-out tasks solved at temperature 1, a line per seed</text>'
    )
    for row in rows:
        for run in row["runs"]:
            colour = COLOURS["control" if run["control"] else "held-out"]
            dash = ' stroke-dasharray="5 4"' if run["control"] else ""
            line = " ".join(place(point[0], point[2]) for point in run["held_out"])
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
    for number, (label, colour) in enumerate((("trained", COLOURS["held-out"]), ("shuffled", COLOURS["control"]))):
        parts.append(f'<text x="{left + 10 + 70 * number}" y="{top + 2}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="measure the learning demo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--updates", type=int, default=15)
    parser.add_argument("--no-control", action="store_true", help="without the controls, in half of the time")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    arguments = parser.parse_args()
    report: dict[str, Any] = {"updates": arguments.updates, "seeds": []}
    if arguments.out.exists():
        earlier = json.loads(arguments.out.read_text())
        report = earlier if earlier["updates"] == arguments.updates else report
    report["machine"] = machine("torch", "transformers", "duckdb")
    for seed in arguments.seeds:
        if seed not in [row["seed"] for row in report["seeds"]]:
            report["seeds"].append(run_seed(seed, arguments.updates, not arguments.no_control))
            arguments.out.write_text(json.dumps(report, indent=1) + "\n")
        row = next(one for one in report["seeds"] if one["seed"] == seed)
        for run in row["runs"]:
            ends = [run["held_out"][0][2], run["held_out"][-1][2], run["greedy"][0][2], run["greedy"][-1][2]]
            print(seed, run["control"] or "trained", *(f"{100 * x:.1f}" for x in ends), row["wall_s"], flush=True)
    arguments.figure.write_text(figure(report["seeds"]))


if __name__ == "__main__":
    main()
