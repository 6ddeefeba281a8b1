"""The plan's rules in plain Python over the pool's public step table: the judge of core.batch."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from core.batch.recipe import Recipe
from core.pool import Pool
from core.types import View

EXACT = {"engine", "logprobs", "whitebox"}


def candidates(pool: Pool, view: View, channel: str) -> list[dict[str, Any]]:
    rows = [r for r in pool.steps.page(view, limit=None).to_pylist() if r["channel"] == channel]
    starts = {t["trajectory_uid"]: t for t in pool.trajectories.page(limit=None).to_pylist()}
    group_start: dict[str, Any] = {}
    for t in starts.values():
        if t["channel"] == channel:
            old = group_start.get(t["prompt_uid"])
            group_start[t["prompt_uid"]] = t["started_at"] if old is None else min(old, t["started_at"])
    return sorted(
        rows,
        key=lambda r: (
            group_start[r["prompt_uid"]],
            r["prompt_uid"],
            starts[r["trajectory_uid"]]["started_at"],
            r["trajectory_uid"],
            r["step_index"],
        ),
    )


def plan(pool: Pool, view: View, recipe: Recipe) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """Chosen rows in order (with ``advantage``), and the step uids that each reason took out."""
    rows = candidates(pool, view, recipe.channel)
    out: dict[str, list[str]] = defaultdict(list)
    sft = recipe.algorithm == "sft"
    trusted = (
        set(recipe.token_sources)
        if recipe.token_sources is not None
        else EXACT
        if not sft
        else EXACT | {"bytes", "retokenized"}
    )
    least = recipe.options.get("min_reward", 0.5)
    needs_reward = not sft or least is not None or "best_of" in recipe.options

    def keep(reason, good):
        nonlocal rows
        out[reason] += [r["step_uid"] for r in rows if not good(r)]
        rows = [r for r in rows if good(r)]

    keep("labelled_bad", lambda r: r["quality"] != "bad" and r["trajectory_quality"] != "bad")
    keep("incomplete", lambda r: r["complete"] or not recipe.require_complete)
    keep("unscored", lambda r: not needs_reward or r["trajectory_reward"] is not None)
    keep("not_trainable", lambda r: r["trainable"])
    keep("no_tokens", lambda r: r["n_prompt_tokens"] is not None and bool(r["n_response_tokens"]))
    keep("token_source", lambda r: r["token_source"] in trusted)
    keep("over_length", lambda r: r["n_prompt_tokens"] + r["n_response_tokens"] <= recipe.token_budget)

    def trajectories():
        by_trajectory: dict[str, list[dict[str, Any]]] = {}
        for r in rows:
            by_trajectory.setdefault(r["trajectory_uid"], []).append(r)
        return by_trajectory

    if recipe.max_staleness is not None:
        unknown = {u for u, steps in trajectories().items() if any(s["policy_version"] is None for s in steps)}
        keep("version_unknown", lambda r: r["trajectory_uid"] not in unknown)
        now = recipe.policy_version
        old = {
            u
            for u, steps in trajectories().items()
            if now - min(s["policy_version"] for s in steps) > recipe.max_staleness
        }
        keep("stale", lambda r: r["trajectory_uid"] not in old)

    def groups():
        by_group: dict[str, list[str]] = {}
        for uid, steps in trajectories().items():
            by_group.setdefault(steps[0]["prompt_uid"], []).append(uid)
        return by_group

    score = {u: steps[0]["trajectory_reward"] for u, steps in trajectories().items()}
    if sft:
        low = least
        good = {u for u in score if low is None or score[u] >= low}
        if "best_of" in recipe.options:
            best = set()
            for uids in groups().values():
                ranked = sorted((u for u in uids if u in good), key=lambda u: -score[u])
                best |= set(ranked[: recipe.options["best_of"]])
            good = best
        keep("rejected", lambda r: r["trajectory_uid"] in good)
    least = max(1 if sft or recipe.options.get("singleton", "exclude") != "exclude" else 2, recipe.n_rollouts or 1)
    enough = {g for g, uids in groups().items() if len(uids) >= least}
    keep("group_too_small", lambda r: r["prompt_uid"] in enough)
    if recipe.n_rollouts is not None:
        first = {u for uids in groups().values() for u in uids[: recipe.n_rollouts]}
        keep("over_rollouts", lambda r: r["trajectory_uid"] in first)
    if recipe.batch_size is not None:
        first_groups = set(list(groups())[: recipe.batch_size])
        keep("over_batch", lambda r: r["prompt_uid"] in first_groups)
    steps_of = trajectories()
    for uids in groups().values():
        rewards = [score[u] for u in uids]
        for u in uids:
            value = advantage(recipe.algorithm, rewards, score[u])
            for r in steps_of[u]:
                r["advantage"] = value
    return rows, {reason: uids for reason, uids in out.items() if uids}


def advantage(algorithm: str, rewards: list[float], own: float) -> float | None:
    if algorithm == "sft":
        return None
    if len(rewards) == 1:
        return own
    mean = statistics.fmean(rewards)
    if algorithm == "grpo":
        return (own - mean) / (statistics.stdev(rewards) + 1e-6)
    return (own - mean) * (len(rewards) / (len(rewards) - 1) if algorithm == "rloo" else 1.0)
