"""Runs a checker on the untouched workspace, on the reference solution, and on mutants of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.packs import Pack, PackTask
from core.packs.checks import check_of
from core.packs.lint import lint
from core.packs.lint.finding import ERROR
from core.packs.lint.run import findings_of, untouched
from core.packs.model import Files
from core.packs.tree import write_tree
from core.rewards import Score, score
from core.sandbox import Level
from core.synthesis.proof.mutants import CONSTANT, mutants
from core.synthesis.proof.rules import broken_rules
from core.synthesis.proof.solve import Solution

STAGES = {
    "compile": "the source is not valid Python",
    "rules": "it reads the clock, chance, the network, its own folder, or what lint refuses",
    "untouched": "it does not give 0 on the untouched workspace, or crashes there",
    "solution": "it does not give more than 0 on the reference solution",
    "own_folder": "its score depends on where its folder is",
    "flaky": "its score changes from run to run",
    "mutants": "it does not tell mutants from the solution, or crashes on one",
}
"""Where a proof can fail."""
_ALSO_REFUSED = frozenset({"checker_in_workspace", "checker_finds_itself", "checker_writes", "checker_import"})
_EPS = 1e-9


class NotProven(Exception):
    """The checker does not hold: ``stage`` is a key of ``STAGES``, ``reason`` a sentence for the repair."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(reason)
        self.stage, self.reason = stage, reason


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mutant and its score; ``killed`` if that is below the solution's."""

    kind: str
    path: str
    change: str
    score: float
    killed: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """What was measured of a checker that holds.

    Attributes:
        solution_score: of the reference solution, in (0, 1].
        values: its values by name; None where the checker prints none.
        mutations: the mutants.
        mutation_score: share of mutants that scored below the solution, in [0, 1].
        n_runs: how often the solution was scored.
        flakiness: share of these runs that differ from the first, in [0, 1].
        isolation: level of isolation of the runs, as JSON.
    """

    solution_score: float
    values: Mapping[str, Any] | None
    mutations: tuple[Mutation, ...]
    mutation_score: float
    n_runs: int
    flakiness: float
    isolation: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)


def prove(
    task: PackTask,
    source: str,
    solution: Solution,
    *,
    isolation: Level = "process",
    time_s: float = 60.0,
    n_runs: int = 10,
    n_mutants: int = 8,
    min_mutation_score: float = 0.5,
    should_stop: Callable[[], None] = lambda: None,
) -> Proof:
    """Show that the checker of a task holds.

    Args:
        task: the task with the checker.
        source: the checker's own source, without what makes a program of it.
        solution: the workspace that the reference solution left.
        isolation, time_s: of each run.
        n_runs: runs on the solution.
        n_mutants: most mutants.
        min_mutation_score: lowest share of mutants that must score below the solution. The mutant with constants must
            in any case.
        should_stop: called before each run; raises to stop.

    Raises:
        NotProven: it does not hold.
        IsolationMissing: the machine does not have this level of isolation.
    """
    _read(task, source)
    should_stop()
    _untouched(task, isolation, time_s)
    with _Scorer(task, isolation, time_s, should_stop) as scorer:
        first = scorer.score(solution.after)
        value = _value(first, "solution", "on the reference solution")
        values = first.details.get("values")
        if value <= 0:
            raise NotProven(
                "solution",
                f"the reference solution scores {value:g}; it made {', '.join(solution.changed)}; values: {values}",
            )
        outside = scorer.score(solution.after, placement="outside")
        if abs(_value(outside, "own_folder", "outside of the workspace") - value) > _EPS:
            raise NotProven(
                "own_folder", f"the solution scores {value:g}, and {outside.value:g} with reward/ elsewhere"
            )
        n_other = sum(scorer.differs(solution.after, value) for _ in range(n_runs - 1))
        if n_other:
            raise NotProven("flaky", f"{n_other} of {n_runs} runs on the same workspace gave another score")
        mutations = _mutations(scorer, solution, value, n_mutants)
    share = sum(one.killed for one in mutations) / len(mutations) if mutations else 0.0
    kept = [one for one in mutations if not one.killed]
    if share < min_mutation_score or any(one.kind == CONSTANT for one in kept):
        shown = "; ".join(f"{one.kind} in {one.path} ({one.change}) scores {one.score:g}" for one in kept[:5])
        raise NotProven(
            "mutants", f"{len(kept)} of {len(mutations)} wrong results score no less than the solution: {shown}"
        )
    isolated = dict(first.environment.get("isolation") or {})
    return Proof(value, values, tuple(mutations), share, n_runs, n_other / n_runs, isolated)


def _read(task: PackTask, source: str) -> None:
    try:
        broken = broken_rules(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise NotProven("compile", f"it is not valid Python: {error}") from error
    if broken:
        raise NotProven("rules", "; ".join(broken))
    findings = lint(Pack(task.task_id, [task]))
    refused = [one.message for one in findings if one.level == ERROR or one.check in _ALSO_REFUSED]
    if refused:
        raise NotProven("rules", "; ".join(refused))


def _untouched(task: PackTask, isolation: Level, time_s: float) -> None:
    result = untouched(task, isolation=isolation, timeout_s=time_s)
    findings = [] if result is None else list(findings_of(result))
    refused = [one for one in findings if one.level == ERROR or one.check in _ALSO_REFUSED]
    if refused:
        own = any(one.check == "checker_finds_itself" for one in refused)
        raise NotProven("own_folder" if own else "untouched", "; ".join(one.message for one in refused))


def _mutations(scorer: _Scorer, solution: Solution, value: float, limit: int) -> list[Mutation]:
    mutations = []
    for one in mutants(solution.before, solution.after, solution.changed, limit):
        where = f"where {one.kind.replace('_', ' ')} in {one.path}: {one.change}"
        reached = _value(scorer.score(one.files), "mutants", where)
        mutations.append(Mutation(one.kind, one.path, one.change, reached, reached < value - _EPS))
    return mutations


def _value(result: Score, stage: str, where: str) -> float:
    if result.value is None:
        raise NotProven(stage, f"the checker gives no score {where}: {result.error}")
    return result.value


class _Scorer:
    """Scores workspaces with the check of one task, in ``with``."""

    def __init__(self, task: PackTask, isolation: Level, time_s: float, should_stop: Callable[[], None]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="claw-proof-")
        self._check = check_of(task, Path(self._folder.name, "check")) | {"isolation": isolation, "timeout_s": time_s}
        self._should_stop = should_stop
        self._n = 0

    def score(self, files: Files, **settings: Any) -> Score:
        """The score of a workspace with these files."""
        self._should_stop()
        self._n += 1
        workspace = Path(self._folder.name, f"workspace-{self._n}")
        write_tree(workspace, files)
        return score(workspace, {**self._check, **settings})

    def differs(self, files: Files, value: float) -> bool:
        """Whether another run gives another score, or none."""
        again = self.score(files).value
        return again is None or abs(again - value) > _EPS

    def __enter__(self) -> _Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()
