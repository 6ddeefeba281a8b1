"""The table of measurements in README, from the committed results: ``python bench/table.py`` writes it there.

Each row is one sentence of a result file, so that README can't say another number than the benchmark did
(``tests/test_docs.py`` compares).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->\n"

Row = tuple[str, str, str]


def load(name: str) -> dict[str, Any]:
    """One result file."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def tree_rows() -> Iterator[Row]:
    """Build and layout."""
    for name, case in load("tree")["cases"].items():
        peers = ", ".join(f"{peer} {one['build_is_faster_by']:.0f}×" for peer, one in case["peers"].items())
        ours = f"{case['build_s'] * 1e3:.1f} ms, {case['tokens_per_s'] / 1e6:,.0f} M tokens/s"
        ours += f", {case['memory']['build_over_copy']:.1f} × a copy of the ids"
        ours += f" ({case['build_deltas_s'] * 1e3:.1f} ms from the pool's deltas)"
        yield f"prefix tree, {name} tokens", ours, f"faster than {peers}"


def packing_rows() -> Iterator[Row]:
    """Packing under a budget, steps in shuffled order."""
    for name, case in load("packing")["cases"].items():
        ours, *others = case["shuffled"].items()
        peers = ", ".join(f"{peer} {one['tokens']:,} in {one['s']:.1f} s" for peer, one in others)
        best = f"{ours[1]['tokens']:,} tokens in {ours[1]['s'] * 1e3:.0f} ms"
        yield f"packing, {name}", f"{best} (none can do with less than {case['floor']:,})", peers


def step_rows() -> Iterator[Row]:
    """A training step over packed rows."""
    for name, case in load("tree_step")["cases"].items():
        step, memory = case["step_s"], case["memory_mib"]
        yield (
            f"training step, token ratio {name}, CPU",
            f"{step['packed']:.2f} s, {memory['packed']:.0f} MiB: {case['share_of_ideal']:.2f} of the ideal speed-up",
            f"unpadded {step['unpadded']:.2f} s, {memory['unpadded']:.0f} MiB; "
            f"padded {step['padded']:.2f} s, {memory['padded']:,.0f} MiB",
        )


def table() -> str:
    """The markdown between README's marks."""
    rows = [*tree_rows(), *packing_rows(), *step_rows()]
    lines = ["| what | measured | beside it, in the same run |", "|---|---|---|"]
    return "\n".join(lines + [f"| {what} | {ours} | {peers} |" for what, ours, peers in rows]) + "\n"


def main() -> None:
    """Write the table into README."""
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    README.write_text(before + BEGIN + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
