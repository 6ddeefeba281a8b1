"""Writes the stages of a run as files with ClawGym's names and keys, which its own tools read.

Each record has the fields of the stages before it, as in ClawGym: the answer of a model is ``model_output_json``,
``judge_output_json`` or ``llm_rubric_output_json``, the checker ``validation_code_output_code``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from core.errors import InvalidInput
from core.packs.clawgym import CHECK
from core.packs.clawgym_rows import HOOK
from core.packs.fields import entry_of
from core.packs.model import PackTask
from core.synthesis.draft import entries_of
from core.synthesis.pack import KEY, tasks_of
from core.synthesis.rows import Row
from core.synthesis.settings import SKILL
from core.synthesis.stages.checker import CHECKER
from core.synthesis.stages.persona import SAMPLE, TASKS
from core.synthesis.stages.shared import DEDUP, JUDGE, RUBRICS
from core.synthesis.stages.skill import ANNOTATE, COMPOSE, SYNTHESIZE
from core.synthesis.state import State
from core.synthesis.store import SynthesisRun

Record = dict[str, Any]


def write_stage_files(run: SynthesisRun, out: Path) -> list[str]:
    """Write the files of a run to a new folder; returns their paths in it.

    Raises:
        InvalidInput: the folder exists, or can't be written.
    """
    if out.exists():
        raise InvalidInput(f"{out} exists", field="out", hint="name a new folder")
    state = run.state()
    files = _skill(run, state) if run.settings.route == SKILL else _persona(run, state)
    try:
        for name, records in files.items():
            path = out / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{out} can't be written: {error}", field="out", hint="check space and rights") from error
    return list(files)


def _persona(run: SynthesisRun, state: State) -> dict[str, list[Record]]:
    prompts = [_sampled(row) for row in state.of_stage(SAMPLE)]
    tasks = _joined(prompts, state, TASKS, _answer("model_output"))
    kept = _joined(tasks, state, DEDUP, lambda row: {})
    duplicates = [
        {
            **record,
            "_dedup_matched_record_index": _index(row.product["nearest"]),
            "_dedup_cosine_similarity": row.product["similarity"],
            "_dedup_task_category": record["task_category"],
        }
        for record in tasks
        if (row := state.rows.get((DEDUP, _key(record)))) is not None
        and row.product is not None
        and not state.passes(DEDUP, row.key)
    ]
    kept = [one for one in kept if state.passes(DEDUP, _key(one))]
    judged = _joined(kept, state, JUDGE, _judged)
    checked = _joined([one for one in judged if state.passes(JUDGE, _key(one))], state, CHECKER, _checked)
    proven = [one for one in checked if state.passes(CHECKER, _key(one))]
    rubrics = _joined(proven, state, RUBRICS, _rubric)
    files: dict[str, list[Record]] = {
        "01_task_prompts.jsonl": prompts,
        "02_tasks.jsonl": tasks,
        "03_dedup/tasks_kept.jsonl": kept,
        "03_dedup/tasks_removed.jsonl": duplicates,
        "05_judge_results.jsonl": judged,
        "06_judge_filter/judge_results_pass.jsonl": [one for one in judged if state.passes(JUDGE, _key(one))],
        "06_judge_filter/judge_results_fail.jsonl": [one for one in judged if not state.passes(JUDGE, _key(one))],
        "08_validation_code_results.jsonl": checked,
        "08_validation_code_results_pass.jsonl": proven,
        "08_validation_code_results_fail.jsonl": [one for one in checked if not state.passes(CHECKER, _key(one))],
        "10_llm_rubric_results.jsonl": rubrics,
        "11_filter_rubrics/llm_rubric_results_pass.jsonl": [one for one in rubrics if one["llm_rubric_filter_pass"]],
        "11_filter_rubrics/llm_rubric_results_fail.jsonl": [
            one for one in rubrics if one["llm_rubric_filter_pass"] is False
        ],
        "11_filter_rubrics/llm_rubric_results_skipped.jsonl": [
            one for one in rubrics if one["llm_rubric_filter_pass"] is None
        ],
        "12_run_payload_dataset.jsonl": [_payload(task) for task in tasks_of(run, state)],
    }
    return files


def _skill(run: SynthesisRun, state: State) -> dict[str, list[Record]]:
    return {
        "skill_annotations.jsonl": [
            {"skill_name": row.key, **(row.product or {}), "reason": row.reason} for row in state.of_stage(ANNOTATE)
        ],
        "synthesized_tasks.jsonl": [
            {**_without(state.rows[COMPOSE, row.key].product, "contents"), **(row.product or {}), "reason": row.reason}
            for row in state.of_stage(SYNTHESIZE)
        ],
        "rejected_tasks.jsonl": [
            {"task_id": f"{run.settings.run}-{row.key}", "stage": row.stage, "reason": row.reason}
            for stage in (DEDUP, JUDGE, CHECKER, RUBRICS)
            for row in state.of_stage(stage)
            if not state.passes(stage, row.key)
        ],
        "tasks.jsonl": [skill_record(task) for task in tasks_of(run, state)],
    }


def _without(product: Mapping[str, Any] | None, name: str) -> Record:
    return {key: value for key, value in (product or {}).items() if key != name}


def skill_record(task: PackTask) -> Record:
    """A task as a record of ClawGym's skill route, single-file form."""
    return {
        "task_id": task.task_id,
        "prompt": task.query,
        "validation_mode": "code_and_rubric" if task.rules else "code",
        "reward_aggregation": "mean",
        "rules": list(task.rules),
        "hook_code": "",
        "hook_lang": "bash",
        "input_files": [entry_of(path, one) for path, one in task.input_files.items()],
        "reward_files": [entry_of(path, one) for path, one in task.checker_files.items()],
        "metadata": {"category": task.category or "", "grading_type": "automated"},
        KEY: task.extra.get(KEY),
    }


def _payload(task: PackTask) -> Record:
    """A task as a record of ClawGym's stage 12."""
    checker = task.checker_files[CHECK]
    return {
        "prompt": task.query,
        "hook_code": HOOK,
        "hook_lang": "bash",
        "rules": list(task.rules) or None,
        "category": task.category,
        "macro_category": task.extra.get("macro_category"),
        "action": task.extra.get("action"),
        "input_files": [
            *entries_of(task.input_files),
            {"file_path": "reward/test.py", "file_format": "py", "content": checker.text},
        ],
        KEY: task.extra.get(KEY),
    }


def _sampled(row: Row) -> Record:
    product = row.product or {}
    text = (
        f"Task category: {product.get('task_category')}\nPersona: {product.get('personal')}\n"
        f"Operations: {', '.join(product.get('basic_operations') or ())}"
    )
    return {"prompt": text, **product}


def _key(record: Mapping[str, Any]) -> str:
    return f"r{record['record_index']:05d}"


def _index(key: str | None) -> int | None:
    return None if key is None else int(key[1:])


def _joined(records: Iterable[Record], state: State, stage: str, fields: Any) -> list[Record]:
    """The records for which the stage has a row, with its fields."""
    rows = [(record, state.rows.get((stage, _key(record)))) for record in records]
    return [{**record, **fields(row)} for record, row in rows if row is not None]


def _answer(prefix: str) -> Any:
    def fields(row: Row) -> Record:
        return {
            f"{prefix}_json": row.product,
            f"{prefix}_parse_success": row.product is not None,
            f"{prefix}_reason": row.reason,
        }

    return fields


def _judged(row: Row) -> Record:
    answer = dict(row.product or {})
    flags = {name: int(bool(answer[name])) for name in ("has_factual_error", "has_answer_leak") if name in answer}
    return {
        **_answer("judge_output")(row),
        "judge_output_json": {**answer, **flags} if row.product is not None else None,
        "judge_filter_pass": row.reason is None,
        "judge_filter_reason": row.reason or "Pass",
    }


def _checked(row: Row) -> Record:
    made = row.product or {}
    return {
        "validation_code_output_code": made.get("code") or None,
        "validation_code_output_parse_success": bool(made.get("code")),
        "iterative_generation_success": bool(made.get("success")),
        "iterative_generation_rounds_used": made.get("rounds_used", 0),
        "iterative_generation_failure_stage": made.get("failure_stage"),
        "iterative_generation_reason": row.reason or "Pass",
        "iterative_generation_history": list(made.get("history") or ()),
        KEY: {"solution": made.get("solution"), "proof": made.get("proof")},
    }


def _rubric(row: Row) -> Record:
    made = row.product or {}
    skipped = made.get("skip_rubric") is True
    rubric = {name: made.get(name) for name in ("eval_type", "score_options", "eval_input", "rules")}
    return {
        "llm_rubric_skip": skipped,
        "llm_rubric_skip_reason": made.get("reason") if skipped else None,
        "llm_rubric_output_json": None if skipped or row.product is None else rubric,
        "llm_rubric_output_parse_success": row.reason is None,
        "llm_rubric_filter_pass": None if skipped else row.reason is None,
        "llm_rubric_filter_reason": "skip_rubric" if skipped else row.reason or "Pass",
        "llm_rubric": None if skipped or row.reason is not None else rubric,
    }
