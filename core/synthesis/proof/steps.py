"""The proof of a checker as people read it: each step with its requirement, and whether it held."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HOLDS, FAILS, NOT_RUN = "holds", "fails", "not run"
REQUIREMENTS = {
    "solution_runs": "A reference solution runs in the sandbox, and its result is not among the inputs",
    "compile": "The checker is valid Python",
    "rules": "It reads no clock, chance, network or folder of its own; lint finds no error",
    "untouched": "It gives 0 on the untouched workspace, and changes nothing there",
    "solution": "It gives more than 0 on the reference solution",
    "own_folder": "It gives the same with its folder elsewhere",
    "flaky": "It gives the same in every run",
    "mutants": "Enough wrong results score less than the solution",
}
_BEFORE = frozenset({"solution", "leak"})


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its name, what must hold, ``holds``, ``fails`` or ``not run``, and what was measured or went wrong."""

    name: str
    requirement: str
    result: str
    detail: str


def steps_of(product: Mapping[str, Any]) -> list[Step]:
    """The steps of the proof, from the product of the stage that writes the checker."""
    proof = product.get("proof")
    if isinstance(proof, Mapping):
        return [Step(name, text, HOLDS, _measured(name, proof)) for name, text in REQUIREMENTS.items()]
    failed, reason = str(product.get("failure_stage") or ""), str(product.get("reason") or "")
    names = list(REQUIREMENTS)
    # Without code, the stage failed before there was a checker: at the reference solution, or for want of an answer.
    if failed in _BEFORE and not product.get("code"):
        at = 0
    elif failed in names:
        at = names.index(failed)
    else:
        at = 1
    made = []
    for place, name in enumerate(names):
        result = HOLDS if place < at else FAILS if place == at else NOT_RUN
        made.append(Step(name, REQUIREMENTS[name], result, reason if place == at else ""))
    return made


def _measured(name: str, proof: Mapping[str, Any]) -> str:
    mutations = proof.get("mutations") or ()
    if name == "untouched":
        return "score 0"
    if name == "solution":
        return f"score {proof['solution_score']:g}"
    if name == "flaky":
        return f"{proof['n_runs']} runs, flakiness {proof['flakiness']:g}"
    if name == "mutants":
        n_below = sum(bool(one["killed"]) for one in mutations)
        return f"{n_below} of {len(mutations)} below, mutation score {proof['mutation_score']:.2f}"
    return ""
