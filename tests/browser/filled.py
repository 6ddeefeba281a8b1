"""What a studio holds beside the demo data so that each page has something to show, and the addresses of the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from core.client import StudioClient
from core.packs import read_pack
from core.packs.library import PackLibrary
from core.rollouts import RunStore
from core.serving.tokenizer import load_tokenizer, tokenizer_hash
from core.synthesis import SynthesisStore
from core.tasks.demo import DEMO_DATA
from tests.browser.odd_data import odd_steps
from tests.pages.test_learn_page import trained
from tests.report.made_run import make_run
from tests.synthesis.made_run import make_run as make_synthesis

SCORES: dict[str, list[float | None]] = {
    "demo_005": [1.0, 0.0, 1.0, None],
    "demo_006": [0.25],
    "demo_021": [1.0, 1.0],
}
QUERY = "SELECT trajectory_uid, prompt_uid, agent, n_steps, reward FROM trajectories ORDER BY reward DESC LIMIT 20"
PATHS = (
    "",
    "collect",
    "tasks",
    "tasks?task=demo_005",
    "tasks?task=demo_005&tab=files",
    "tasks?task=demo_005&tab=check",
    "tasks?task=demo_005&tab=rubric",
    "tasks?task=demo_005&tab=attempts",
    "tasks?task=demo_005&tab=edit",
    "tasks?view=lint",
    "tasks?view=report&run=run-1",
    "tasks?view=report&run=run-1&with=run-2",
    "synthesis",
    "synthesis?stage=validation_code&row=r00000",
    "synthesis?stage=judge&row=r00003",
    "synthesis?view=prompts",
    "synthesis?view=pack",
    "rollouts?run=run-1",
    "rollouts?run=run-1&attempt=0.0.demo_005",
    "inspect",
    "inspect?level=groups",
    "inspect?level=steps",
    "inspect?level=runs",
    "inspect?runs=base&runs=tuned",
    "inspect?group=demo-fix-typos",
    "inspect?step=odd-2%3A0&tab=tokens",
    "inspect?trajectory=odd-1",
    "inspect?trajectory=odd-1&tab=transcript",
    "inspect?trajectory=odd-1&tab=facts",
    "inspect?trajectory=odd-1&tab=raw",
    "inspect?trajectory=base-0&tab=edit",
    "inspect?trajectory=odd-1&tab=history",
    "curate",
    "curate?tab=review",
    "curate?tab=distributions",
    "curate?tab=funnel",
    "curate?tab=reviewers",
    "curate?tab=history",
    "datasets?tab=freeze",
    "datasets?tab=versions",
    "datasets?tab=versions&version=redacted&show=about",
    "datasets?tab=versions&version=redacted&show=rows",
    "datasets?tab=diff&a=whole&b=redacted",
    "datasets?tab=rewards",
    "datasets?tab=rescore",
    "sql",
    f"sql?q={quote(QUERY)}",
    "optimise",
    "optimise?tab=mask",
    "optimise?tab=rows",
    "batch",
    "batch?tab=excluded",
    "batch?tab=credit",
    "batch?tab=compare",
    "batch?tab=export&format=trl_dpo&recipe=%7B%22algorithm%22%3A%22dpo%22%7D",
    "batch?tab=json",
    "consume",
    "consume?tab=metrics",
    "learn",
    "cluster",
    "settings",
)
"""Addresses of :func:`fill`'s studio, one or more for each page."""
REFUSED = ("sql?q=SELECT+nothing+FROM+steps", "inspect?trajectory=odd-1&tab=edit")
"""Addresses whose page shows an error: a wrong query, an answer whose tokenizer is not known."""


def named_runs() -> list[dict[str, Any]]:
    """Two runs (experiments) of four tasks, of which the second solves more; the answers hold an address each."""
    tokenizer, known_as = load_tokenizer(), tokenizer_hash()
    steps = []
    for run in ("base", "tuned"):
        for task in range(4):
            prompt, answer = f"Who is told about task {task}?", f"Mail ada{task}@example.org when {run} is done."
            sampled = tokenizer.encode(answer)
            steps.append(
                {
                    "trajectory_uid": f"{run}-{task}",
                    "prompt_uid": f"compared-{task}",
                    "step_index": 0,
                    "channel": "compared",
                    "metadata": {"run": run},
                    "model": "policy",
                    "prompt_ids": tokenizer.encode(prompt),
                    "response_ids": sampled,
                    "response_logprobs": [-0.1] * len(sampled),
                    "tokenizer_hash": known_as,
                    "messages": [{"role": "user", "content": prompt}],
                    "response_message": {"role": "assistant", "content": answer},
                    "reward": float(run == "tuned" or task == 0),
                    "is_last": True,
                }
            )
    return steps


def fill(data_dir: Path, client: StudioClient, *, odd: bool = True) -> None:
    """Add to a studio with the demo data: odd steps, runs, updates of a trainer, versions, a pack, a synthesis."""
    if odd:
        client.submit(odd_steps())
    client.submit(named_runs())
    trained(client.base_url, first=2)  # the demo data ends at version 2
    view = {"view": {"filters": {"channel": "compared"}}, "recipe": {"algorithm": "sft", "channel": "compared"}}
    client.call("POST", "/api/v1/datasets", {"name": "whole", "author": "ada", **view})
    rules = {"rules": ["email"]}
    client.call(
        "POST", "/api/v1/datasets", {"name": "redacted", "parent": "whole", "author": "ada", "redaction": rules, **view}
    )
    packs, runs, pack = PackLibrary(data_dir / "packs"), RunStore(data_dir / "rollouts"), read_pack(DEMO_DATA / "pack")
    make_run(runs, packs, None, pack, SCORES)
    make_run(runs, packs, None, pack, {name: scores[:1] for name, scores in SCORES.items()}, run="run-2", version=4)
    make_synthesis(SynthesisStore(data_dir / "synthesis"))
