"""The task pack of a run: the tasks that passed every stage, with what was measured of their checkers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from core.errors import InvalidInput
from core.packs import Pack, PackTask
from core.synthesis.behaviour import SameAs
from core.synthesis.difficulty import Difficulty, in_band
from core.synthesis.draft import candidate
from core.synthesis.proof.solve import Solution
from core.synthesis.routes import route_of
from core.synthesis.rows import digest
from core.synthesis.stages.checker import CHECKER
from core.synthesis.stages.shared import RUBRICS
from core.synthesis.state import State
from core.synthesis.store import SynthesisRun
from core.synthesis.work import ready

KEY = "synthesis"
"""The field of a task with what is known of its making: run, row, scores of its checker, models, prompts, cost."""
RUBRIC_WEIGHTS = {"code": 0.7, "rubric": 0.3}
"""ClawGym's weights of tasks with a rubric."""


def tasks_of(run: SynthesisRun, state: State) -> list[PackTask]:
    """The tasks whose rows passed every stage, in order; empty if there are none."""
    route = route_of(run.settings.route)
    names = [one.name for one in route.stages if one.name in (route.sample, route.task, CHECKER, RUBRICS)]
    return [_task(run, state, names, key) for key in ready(route, state)]


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


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tasks a pack has, by what was measured.

    Attributes:
        min_mutation_score, max_flakiness: of the checker.
        min_difficulty: as the model that wrote the task says, 1 to 5.
        min_solve_rate, max_solve_rate: from rollouts (``core.synthesis.difficulty``), both ends included.
        distinct_behaviour: leave out tasks that are solved by the same actions as an earlier one.
    """

    min_mutation_score: float = 0.0
    max_flakiness: float = 1.0
    min_difficulty: float = 0.0
    min_solve_rate: float = 0.0
    max_solve_rate: float = 1.0
    distinct_behaviour: bool = False

    @property
    def needs_rollouts(self) -> bool:
        """Whether it asks for what only rollouts show."""
        return (self.min_solve_rate, self.max_solve_rate) != (0.0, 1.0) or self.distinct_behaviour


EVERY_TASK = Choice()


def pack_of(
    run: SynthesisRun,
    choice: Choice = EVERY_TASK,
    *,
    state: State | None = None,
    difficulty: Mapping[str, Difficulty] | None = None,
    same: Mapping[str, SameAs] | None = None,
) -> Pack:
    """The pack of a run, with the tasks that passed every stage and that the choice lets pass.

    Args:
        run: the run.
        choice: which tasks.
        state: of the run, if it was read already.
        difficulty, same: what rollouts show of the tasks, for a choice that needs it.

    Raises:
        InvalidInput: no task passed every stage and the filters.
    """
    tasks = tasks_of(run, run.state() if state is None else state)
    if not tasks:
        raise InvalidInput(
            f"no task of {run.settings.run} passed every stage", field="run", hint="show lists the reasons"
        )
    kept = filtered(tasks, choice, difficulty or {}, same or {})
    if not kept:
        raise InvalidInput(
            f"none of {len(tasks)} tasks passes the filters", field="min_mutation_score", hint="ask for less"
        )
    return Pack(run.settings.run, kept, "clawgym")


def filtered(
    tasks: Sequence[PackTask],
    choice: Choice,
    difficulty: Mapping[str, Difficulty] | None = None,
    same: Mapping[str, SameAs] | None = None,
) -> list[PackTask]:
    """Tasks by what was measured; one without a measurement passes only filters that are off.

    Raises:
        InvalidInput: the band of solve rates is not valid.
    """
    known = difficulty or {}
    rates = {one.task_id: known[one.task_id].solve_rate if one.task_id in known else None for one in tasks}
    right = in_band(rates, (choice.min_solve_rate, choice.max_solve_rate))

    def passes(task: PackTask) -> bool:
        measured = task.extra.get(KEY)
        fields: Mapping[str, Any] = measured if isinstance(measured, Mapping) else {}
        mutation, flaky, hard = (fields.get(name) for name in ("mutation_score", "flakiness", "difficulty"))
        return (
            (choice.min_mutation_score <= 0 or (mutation is not None and mutation >= choice.min_mutation_score))
            and (choice.max_flakiness >= 1 or (flaky is not None and flaky <= choice.max_flakiness))
            and (choice.min_difficulty <= 0 or (hard is not None and hard >= choice.min_difficulty))
            and task.task_id in right
            and not (choice.distinct_behaviour and task.task_id in (same or {}))
        )

    return [task for task in tasks if passes(task)]
