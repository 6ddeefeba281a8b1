"""Has a reference solution and a checker written, and repairs them until the checker is shown to hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core.synthesis.answers import program_of
from core.synthesis.draft import Draft, candidate
from core.synthesis.proof import NotProven, Proof, Solution, SolutionFailed, prove, solve
from core.synthesis.proof.rules import without_main
from core.synthesis.rows import Failed
from core.synthesis.stages.base import Product, Products, Work

CHECKER = "validation_code"
History = list[dict[str, Any]]


def checking(draft: Callable[[Products], Draft]) -> Callable[[Work, Products], Product]:
    """The stage for a route whose tasks ``draft`` reads.

    The model that writes the solution does not see the checker, and the one that writes the checker does not see the
    solution; a repair shows what failed, with the names of the files and the values by name.
    """

    def make(work: Work, products: Products) -> Product:
        task = draft(products)
        solution, attempts = _solution(work, task)
        code, proof, history = _checker(work, task, solution)
        return {
            "code": code,
            "success": True,
            "rounds_used": len(history) + 1,
            "failure_stage": "pass",
            "history": history,
            "solution": solution.program,
            "solution_rounds": attempts,
            "proof": proof.to_json(),
        }

    return make


def _solution(work: Work, task: Draft) -> tuple[Solution, int]:
    """The reference solution and the number of answers that it took."""
    settings = work.settings
    values = {"query": task.query, "files": task.files_text, "expected": task.expected}
    history: History = []
    for number in range(settings.repair_rounds + 1):
        answer = work.ask("solver", "solution", {**values, "failure": _told(history)})
        program = ""
        try:
            program = program_of(answer)
            solution = solve(task.input_files, program, isolation=settings.isolation, time_s=settings.check_time_s)
        except (Failed, SolutionFailed) as error:
            history.append({"round": number + 1, "failure_stage": "solution", "reason": str(error), "code": program})
            continue
        if solution.leaks:
            path, source = solution.leaks[0]
            raise Failed(
                f"answer leak: the input {source} already is the result {path}",
                _failure("", "leak", "answer leak", history, program),
            )
        return solution, number + 1
    reason = history[-1]["reason"]
    raise Failed(f"no reference solution: {reason}", _failure("", "solution", reason, history, ""))


def _checker(work: Work, task: Draft, solution: Solution) -> tuple[str, Proof, History]:
    """The source of a checker that holds, what was measured, and the answers before it that failed."""
    settings = work.settings
    values = {"query": task.query, "files": task.files_text, "expected": task.expected}
    history: History = []
    for number in range(settings.repair_rounds + 1):
        answer = work.ask("writer", "checker", {**values, "failure": _told(history)})
        source = ""
        try:
            source = program_of(answer)
            try:
                source = without_main(source)
            except (SyntaxError, ValueError) as error:
                raise NotProven("compile", f"it is not valid Python: {error}") from error
            proof = prove(
                candidate(work.key, task, source),
                source,
                solution,
                isolation=settings.isolation,
                time_s=settings.check_time_s,
                n_runs=settings.n_runs,
                n_mutants=settings.n_mutants,
                min_mutation_score=settings.min_mutation_score,
                should_stop=work.should_stop,
            )
        except (Failed, NotProven) as error:
            stage = error.stage if isinstance(error, NotProven) else "answer"
            history.append({"round": number + 1, "failure_stage": stage, "reason": str(error), "code": source})
            continue
        return source, proof, history
    last = history[-1]
    raise Failed(
        f"the checker does not hold after {len(history)} answers: {last['failure_stage']}: {last['reason']}",
        _failure(last["code"], last["failure_stage"], last["reason"], history, solution.program),
    )


def _told(history: History) -> str:
    """What failed, for the next answer."""
    if not history:
        return ""
    last = history[-1]
    code = f"\n\nThe earlier program:\n```python\n{last['code']}```" if last["code"] else ""
    return (
        f"An earlier answer failed at the step {last['failure_stage']!r}: {last['reason']}\n"
        f"Write a corrected program.{code}"
    )


def _failure(code: str, stage: str, reason: str, history: History, solution: str) -> dict[str, Any]:
    return {
        "code": code,
        "success": False,
        "rounds_used": len(history),
        "failure_stage": stage,
        "reason": reason,
        "history": history,
        "solution": solution,
    }
