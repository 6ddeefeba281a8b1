"""A run that is written to disk as the supervisor writes it, with its trajectories in a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.packs import Pack
from core.packs.library import PackLibrary
from core.pool import Pool
from core.rollouts import Attempt, RunSettings, RunStore
from core.types import Step

T0 = 1_790_000_000.0


def outcome_of(score: float | None) -> str:
    return "crashed" if score is None else "solved" if score > 0.5 else "failed"


def make_run(
    runs: RunStore,
    packs: PackLibrary,
    pool: Pool | None,
    pack: Pack,
    scores: Mapping[str, Sequence[float | None]],
    *,
    run: str = "run-1",
    harness: str = "demo",
    version: int = 3,
    n: int = 4,
) -> None:
    """``scores``: task -> the score of each attempt that was begun; of ``n``, the others were not begun."""
    packs.keep(pack, now=T0)
    settings = RunSettings(
        run, pack.name, pack.version, "/packs/one", tuple(scores), harness, "model-1", n, 2, created_at=T0 + version
    )
    made = runs.create(settings)
    writer = made.writer()
    steps, done = [], []
    for task, each in scores.items():
        for number, score in enumerate(each):
            uid = f"{run}:{task}:{number}"
            at = T0 + 10 * number
            writer.write(
                Attempt(
                    run,
                    pack.name,
                    pack.version,
                    task,
                    harness,
                    number,
                    0,
                    uid,
                    "done",
                    outcome_of(score),
                    None if score is not None else "check: it broke",
                    score,
                    {"a": score},
                    {"level": "strict", "layer": "bubblewrap"},
                    2.0 + number,
                    1.0,
                    0.25,
                    None,
                    None,
                    at,
                    at + 3,
                )
            )
            steps += [step(uid, f"{task}@{harness}", k, version) for k in range(2)]
            done.append({"kind": "complete", "trajectory_uid": uid, "reward": score, "outcome": outcome_of(score)})
    writer.close()
    if pool is not None:
        pool.steps.append(steps, completions=done)


def step(uid: str, group: str, k: int, version: int) -> Step:
    fields: dict[str, Any] = {} if k == 0 else {"parent_step_uid": f"{uid}.0", "n_shared_tokens": 4}
    return Step(
        f"{uid}.{k}", uid, group, k, created_at=T0 + k, agent="demo", policy_version=version, token_source="engine",
        prompt_ids=[1, 2, 3] if k == 0 else [1, 2, 3, 4, 5], response_ids=[4 + k],
        response_logprobs=[-1.0], messages=[{"role": "user", "content": f"turn {k}"}],
        response_message={"role": "assistant", "content": "ok"}, transition="extends" if k else None, **fields,
    )  # fmt: skip
