"""A run that is written to disk as its worker writes it: a row of every kind, without an engine."""

from __future__ import annotations

from typing import Any

from core.synthesis import SynthesisRun, SynthesisSettings, SynthesisStore
from core.synthesis.routes import route_of
from core.synthesis.rows import Row, digest
from core.synthesis.state import BEGIN, CALL, END, ROW, State
from core.synthesis.work import FINISHED, products_of
from tests.synthesis.tasks import ALWAYS, CHECK, SOLVE, task

SAMPLED = {"task_category": "tables", "macro_category": "Analysis", "personal": "A baker.", "basic_operations": ["add"]}
PROOF = {
    "solution_score": 1.0,
    "values": {"total": 1.0},
    "mutations": [
        {"kind": "hard_coded", "path": "out/total.json", "change": "every value is a constant", "score": 0.0,
         "killed": True},
        {"kind": "value_changed", "path": "out/total.json", "change": "42 → 43", "score": 1.0, "killed": False},
    ],
    "mutation_score": 0.5,
    "n_runs": 10,
    "flakiness": 0.0,
    "isolation": {"level": "strict"},
}  # fmt: skip
HELD = {
    "code": CHECK,
    "success": True,
    "rounds_used": 2,
    "failure_stage": "pass",
    "history": [{"round": 1, "failure_stage": "untouched", "reason": "scores 1.0", "code": ALWAYS}],
    "solution": SOLVE,
    "solution_rounds": 1,
    "proof": PROOF,
}
REFUSED = {
    "code": ALWAYS,
    "success": False,
    "rounds_used": 1,
    "failure_stage": "untouched",
    "reason": "the untouched workspace scores 1.0",
    "history": [],
    "solution": SOLVE,
}


def make_run(store: SynthesisStore, *, run: str = "made", n_tasks: int = 6, note: str = "") -> SynthesisRun:
    """Tasks 0 and 5 pass every stage; 1 is malformed, 2 a near-duplicate, 3 has a leak, the checker of 4 fails.

    ``note`` is put into texts of models.
    """
    made = store.create(SynthesisSettings(run, "persona", "model-1", n_tasks, 1.0, min_mutation_score=0.25))
    state = State()
    with made.writer() as writer:

        def write(record: dict[str, Any]) -> None:
            writer.write(record)
            state.apply(record)

        def row(stage: str, number: int, product: Any, reason: str | None = None) -> None:
            key = f"r{number:05d}"
            about = route_of("persona").stage(stage)
            based_on = "" if about.make is None else digest(products_of(about, key, state))
            failed = "done" if reason is None else "failed"
            one = Row(stage, key, failed, product, reason, based_on, models=("model-1",), n_calls=1, wall_s=0.5, at=2.0)
            write({"kind": ROW, "row": one.to_json()})

        write({"kind": BEGIN, "at": 1.0})
        reply = {"text": "{}", "model": "model-1", "n_prompt_tokens": 90, "n_response_tokens": 10, "cost_usd": 0.01}
        write({"kind": CALL, "id": "one", "stage": "tasks", "key": "r00000", "reply": reply})
        for number in range(n_tasks):
            row("task_prompts", number, {"record_index": number, **SAMPLED})
        names = ["BAKERY", "", "BAKERY", "HARBOUR", "GARDEN", "CHOIR"]
        for number, name in enumerate(names):
            if name:
                row("tasks", number, {**task(f"{name}{note}"), "has_input_files": True})
            else:
                row("tasks", number, None, f"malformed: the answer has no JSON object: {note}")
        for number in (0, 2, 3, 4, 5):
            near = {"nearest": None, "nearest_query": None, "similarity": None, "query": f"q{number}{note}"}
            if number:
                near |= {"nearest": "r00000", "nearest_query": "q0", "similarity": 0.95 if number == 2 else 0.25}
            row("dedup", number, near, "near-duplicate of r00000: cosine 0.950" if number == 2 else None)
        for number in (0, 3, 4, 5):
            leak = {"has_factual_error": False, "has_answer_leak": number == 3, "reasons": f"because{note}"}
            row("judge", number, leak, f"answer leak: because{note}" if number == 3 else None)
        for number in (0, 4, 5):
            if number == 4:
                row(
                    "validation_code",
                    number,
                    REFUSED,
                    "the checker does not hold after 1 answers: untouched: it scores 1",
                )
            else:
                row("validation_code", number, HELD)
        for number in (0, 5):
            row("rubrics", number, {"skip_rubric": True, "reason": f"code is enough{note}", "rules": []})
        write({"kind": END, "reason": FINISHED, "at": 3.0})
    return made
