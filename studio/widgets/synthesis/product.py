"""The product of a row: a task with its files, a verdict, a checker with its proof, a rubric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from core.synthesis.proof.steps import FAILS, HOLDS, steps_of
from core.synthesis.stages.checker import CHECKER
from core.synthesis.stages.persona import TASKS
from core.synthesis.stages.shared import DEDUP, JUDGE, RUBRICS
from core.synthesis.stages.skill import SYNTHESIZE
from studio import kit
from studio.kit.figures import Tone
from studio.kit.html_tables import dot_label, html_table

RESULTS: Mapping[str, Tone] = {HOLDS: "good", FAILS: "bad"}


def show_product(stage: str, product: Mapping[str, Any]) -> None:
    """The product of a row of this stage. One that a person wrote can have any form; then it is shown as JSON."""
    drawn = {TASKS: _task, SYNTHESIZE: _task, DEDUP: _novelty, JUDGE: _verdict, CHECKER: _checker, RUBRICS: _rubric}
    draw = drawn.get(stage)
    if draw is None:
        st.json(dict(product), expanded=2)
        return
    try:
        draw(product)
    except (KeyError, TypeError, ValueError, AttributeError):
        st.json(dict(product), expanded=2)


def _task(product: Mapping[str, Any]) -> None:
    left, right = st.columns(2, gap="medium")
    with left:
        st.code(str(product.get("question") or product.get("user_query") or ""), language=None, wrap_lines=True)
        difficulty = product.get("difficulty")
        score = difficulty.get("score") if isinstance(difficulty, Mapping) else difficulty
        kit.facts(
            [
                ("Difficulty", score),
                ("Kind", product.get("task_type") or product.get("reward_type")),
                ("Scenario", product.get("scenario") or product.get("reward_summary")),
            ]
        )
        expected = product.get("expected_behavior") or product.get("expected_behaviors") or ""
        lines = [expected] if isinstance(expected, str) else list(expected)
        kit.section("Expected result", "hidden from the agent")
        st.code("\n".join([*map(str, lines), *map(str, product.get("verification_points") or ())]), language=None,
                wrap_lines=True)  # fmt: skip
    with right:
        _files(product.get("input_files") or [])


def _files(entries: Sequence[Mapping[str, Any]]) -> None:
    kit.section("Input files", kit.counted(len(entries), "file"))
    if not entries:
        return
    texts = {str(one["file_path"]): str(one["content"]) for one in entries}
    path = st.selectbox("File", list(texts), label_visibility="collapsed", key="synthesis-file")
    st.code(texts[path], language=None, line_numbers=True, height=320)


def _novelty(product: Mapping[str, Any]) -> None:
    similarity = product["similarity"]
    kit.facts([("Cosine", kit.number(similarity)), ("Compared by", product.get("vectors"))])
    left, right = st.columns(2, gap="medium")
    with left:
        kit.section("This task")
        st.code(str(product["query"]), language=None, wrap_lines=True)
    with right:
        kit.section("Nearest earlier task", str(product["nearest"] or "no earlier task in this category"))
        if product["nearest_query"]:
            st.code(str(product["nearest_query"]), language=None, wrap_lines=True)


def _verdict(product: Mapping[str, Any]) -> None:
    kit.facts(
        [
            ("Factual error", "yes" if product["has_factual_error"] else "no"),
            ("Answer leak", "yes" if product["has_answer_leak"] else "no"),
            ("Reason", product.get("reasons")),
        ]
    )


def _checker(product: Mapping[str, Any]) -> None:
    kit.section("Proof", "a checker counts only if every step holds")
    html_table(
        ("step", "what must hold", "result", "measured"),
        [
            (
                kit.escape(one.name.replace("_", " ")),
                kit.escape(one.requirement),
                dot_label(one.result, RESULTS.get(one.result, "muted")),
                kit.escape(one.detail),
            )
            for one in steps_of(product)
        ],
        wide=(3,),
    )
    proof = product.get("proof")
    if isinstance(proof, Mapping):
        _mutants(proof)
    left, right = st.columns(2, gap="medium")
    with left:
        kit.section("Checker", "it did not see the solution")
        st.code(str(product.get("code") or ""), language="python", line_numbers=True, height=420)
    with right:
        kit.section("Reference solution", "it did not see the checker")
        st.code(str(product.get("solution") or ""), language="python", line_numbers=True, height=420)
    for one in product.get("history") or ():
        with st.expander(kit.escape_markdown(f"Answer {one['round']} failed at {one['failure_stage']}")):
            st.caption(kit.escape_markdown(str(one["reason"])))
            st.code(str(one["code"]), language="python", height=240)


def _mutants(proof: Mapping[str, Any]) -> None:
    kit.section(
        "Mutants",
        f"wrong results, made from the solution's; it scores {kit.number(proof['solution_score'])}",
    )
    html_table(
        ("kind", "file", "change", "score", "scores less"),
        [
            (
                kit.escape(str(one["kind"]).replace("_", " ")),
                kit.escape(one["path"]),
                kit.escape(one["change"]),
                kit.number(one["score"]),
                dot_label("yes" if one["killed"] else "no", "good" if one["killed"] else "warn"),
            )
            for one in proof["mutations"]
        ],
        numeric=(3,),
        wide=(1,),
    )


def _rubric(product: Mapping[str, Any]) -> None:
    if product.get("skip_rubric"):
        st.caption(kit.escape_markdown(f"No rubric: {product.get('reason') or 'code checks everything'}"))
        return
    for rule in product["rules"]:
        kit.section(str(rule["name"]), str(rule["file_path"]))
        levels = sorted(rule["scores"].items(), key=lambda pair: float(pair[0]))
        html_table(("score", "meaning"), [(kit.escape(level), kit.escape(text)) for level, text in levels], wide=(1,))
