"""The task pack of a run: the tasks that passed every stage, with what was measured of their checkers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from core.errors import InvalidInput
from core.packs import Pack, PackTask
from core.synthesis.draft import candidate
from core.synthesis.proof.solve import Solution
from core.synthesis.routes import route_of
from core.synthesis.rows import digest
from core.synthesis.stages.checker import CHECKER
from core.synthesis.stages.shared import RUBRICS
from core.synthesis.state import State
from core.synthesis.store import SynthesisRun
from core.synthesis.work import waiting

KEY = "synthesis"
"""The field of a task with what is known of its making: run, row, scores of its checker, models, prompts, cost."""
RUBRIC_WEIGHTS = {"code": 0.7, "rubric": 0.3}
"""ClawGym's weights of tasks with a rubric."""


def tasks_of(run: SynthesisRun, state: State) -> list[PackTask]:
    """The tasks whose rows passed every stage, in order; empty if there are none."""
    route = route_of(run.settings.route)
    names = [one.name for one in route.stages if one.name in (route.sample, route.task, CHECKER, RUBRICS)]
    passed = next(one.needs for one in route.stages if one.name == RUBRICS)
    # A row that was made from a product that has changed since is no result.
    late = {key for stage in route.stages if stage.make is not None for key in waiting(stage, state)}
    keys = [row.key for row in state.of_stage(RUBRICS) if row.key not in late]
    keys = [key for key in keys if all(state.passes(name, key) for name in (*passed, RUBRICS))]
    return [_task(run, state, names, key) for key in keys]


def _task(run: SynthesisRun, state: State, names: list[str], key: str) -> PackTask:
    route = route_of(run.settings.route)
    products = {name: dict(state.rows[name, key].product or {}) for name in names}
    draft, made, rubric = route.draft(products), products[CHECKER], products[RUBRICS]
    rules = list(rubric.get("rules") or ())
    task = candidate(f"{run.settings.run}-{key}", draft, str(made["code"]))
    return replace(
        task,
        rules=rules,
        weights=RUBRIC_WEIGHTS if rules else None,
        solution_files=Solution(str(made["solution"]), {}, {}).files,
        extra={**task.extra, KEY: _provenance(run, state, key, made, draft.difficulty)},
    )


def _provenance(
    run: SynthesisRun, state: State, key: str, made: Mapping[str, Any], difficulty: float | None
) -> dict[str, Any]:
    rows = [row for (_, name), row in sorted(state.rows.items()) if name == key]
    proof = made.get("proof") or {}
    costs = [row.cost_usd for row in rows]
    known = [one for one in costs if one is not None]
    return {
        "run": run.settings.run,
        "row": key,
        "route": run.settings.route,
        "models": sorted({model for row in rows for model in row.models}),
        "prompts": {name: sha for row in rows for name, sha in row.prompts.items()},
        "edited_stages": [row.stage for row in rows if row.edited],
        "n_calls": sum(row.n_calls for row in rows),
        "cost_usd": sum(known) if len(known) == len(costs) else None,
        "difficulty": difficulty,
        "solution_score": proof.get("solution_score"),
        "mutation_score": proof.get("mutation_score"),
        "n_mutants": len(proof.get("mutations") or ()),
        "flakiness": proof.get("flakiness"),
        "n_runs": proof.get("n_runs"),
        "made_from": digest([row.based_on for row in rows]),
    }


def pack_of(
    run: SynthesisRun,
    *,
    min_mutation_score: float = 0.0,
    max_flakiness: float = 1.0,
    min_difficulty: float = 0.0,
) -> Pack:
    """The pack of a run, with the tasks whose checkers measured at least this well.

    Raises:
        InvalidInput: no task passed every stage and the filters.
    """
    tasks = tasks_of(run, run.state())
    if not tasks:
        raise InvalidInput(
            f"no task of {run.settings.run} passed every stage", field="run", hint="show lists the reasons"
        )
    kept = filtered(
        tasks, min_mutation_score=min_mutation_score, max_flakiness=max_flakiness, min_difficulty=min_difficulty
    )
    if not kept:
        raise InvalidInput(f"none of {len(tasks)} tasks passes the filters", field="min_mutation_score")
    return Pack(run.settings.run, kept, "clawgym")


def filtered(
    tasks: list[PackTask],
    *,
    min_mutation_score: float = 0.0,
    max_flakiness: float = 1.0,
    min_difficulty: float = 0.0,
) -> list[PackTask]:
    """Tasks by what was measured of their checkers; one without a measurement passes only filters that are off."""

    def passes(task: PackTask) -> bool:
        measured = task.extra.get(KEY)
        fields: Mapping[str, Any] = measured if isinstance(measured, Mapping) else {}
        mutation, flaky, hard = (fields.get(name) for name in ("mutation_score", "flakiness", "difficulty"))
        return (
            (min_mutation_score <= 0 or (mutation is not None and mutation >= min_mutation_score))
            and (max_flakiness >= 1 or (flaky is not None and flaky <= max_flakiness))
            and (min_difficulty <= 0 or (hard is not None and hard >= min_difficulty))
        )

    return [task for task in tasks if passes(task)]
