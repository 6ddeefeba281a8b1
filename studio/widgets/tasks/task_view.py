"""One task: its query, files, check, rubric and attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import streamlit as st

from core.packs.listing import route_of
from core.packs.model import CHECKERS, Pack, PackFile, PackTask
from core.packs.preview import preview
from core.report import Subject, report
from core.report.markdown import estimate
from core.report.source import Tried, attempts_at, runs_of
from studio import kit, state
from studio.kit.figures import Tone
from studio.kit.html_tables import dot_label, html_table
from studio.kit.prices import prices_of_url
from studio.kit.url_choices import list_choice, segmented_choice
from studio.widgets.tasks.edit import edit_tab

TABS = {
    "query": "Query",
    "files": "Files",
    "check": "Check",
    "rubric": "Rubric",
    "attempts": "Attempts",
    "edit": "Edit",
}
TONES: dict[str | None, Tone] = {"solved": "good", "failed": "bad", "timed_out": "warn", None: "muted"}
SHOWN_ATTEMPTS = 200
MOST_LINES = 30
"""Files with more lines scroll in a box."""
ROLES = {
    "input_files": "Inputs",
    "solution_files": "Reference solution",
    "environment_files": "Image",
    "other_files": "Other",
}


def task_view(pack: Pack, task: PackTask) -> None:
    """The task's head and the chosen tab."""
    tried = attempts_of(pack, task)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.button("All tasks", icon=":material/arrow_back:", type="tertiary", key="task-back", on_click=_back)
        kit.section(task.task_id, " · ".join(part for part in (task.category, task.split, *task.tags) if part))
    head(pack, task, tried)
    tab = segmented_choice("Tab", TABS, "tab", keep_page=True)
    with kit.error_boundary():
        if tab == "query":
            query_tab(task)
        elif tab == "files":
            files_tab({(role, path): one for role in ROLES for path, one in getattr(task, role).items()})
        elif tab == "check":
            check_tab(task)
        elif tab == "rubric":
            rubric_tab(task)
        elif tab == "attempts":
            attempts_tab(tried)
        else:
            edit_tab(pack, task)


def _back() -> None:
    state.set_query(task=None, tab=None, file=None)


def attempts_of(pack: Pack, task: PackTask) -> list[Tried]:
    """Attempts at the task in all runs of packs of this name."""
    service = state.service()
    runs = runs_of(service.rollouts.runs, pack.name)
    return attempts_at(runs, service.rollouts.packs, service.pool.trajectories, pack.name, task.task_id)


def head(pack: Pack, task: PackTask, tried: Sequence[Tried]) -> None:
    """The figures of the task."""
    total = report(Subject(task.task_id, [one.trial for one in tried]), prices=prices_of_url())["total"]
    cost = total["cost_usd"]
    mean, solved = (None if total[name] is None else total[name]["value"] for name in ("mean", "solved"))
    tokens = [total[name] for name in ("n_prompt_tokens", "n_response_tokens") if total[name] is not None]
    kit.figures(
        [
            kit.Figure("Attempts", kit.count(total["n_attempts"]), sub=f"{total['n_scored']} with a score"),
            kit.Figure("Mean score", kit.number(mean)),
            kit.Figure("Solved", kit.DASH if solved is None else kit.percent(solved)),
            kit.Figure("Seconds", kit.number(total["wall_s"]["median"]), sub="median of an attempt"),
            kit.Figure("Tokens", kit.compact(sum(tokens)) if tokens else kit.DASH, sub="prompts and answers"),
            kit.Figure("Cost", kit.DASH if cost is None else f"${cost:.4f}", sub="by the report's prices"),
            kit.Figure("Input files", kit.count(len(task.input_files)), sub=kit.bytes_text(task.n_input_bytes)),
            kit.Figure("Version", pack.version[:8], sub=f"task {task.content_hash[:12]}"),
        ],
        dense=True,
    )


def query_tab(task: PackTask) -> None:
    """The text for the agent, as it is."""
    st.code(task.query, language=None, wrap_lines=True)
    for number, session in enumerate(task.sessions[1:], start=2):
        kit.section(f"Session {number}")
        st.code(str(session.get("prompt", "")), language=None, wrap_lines=True)
    limit = None if task.timeout_s is None else f"{task.timeout_s:g} s"
    kit.facts([("time limit", limit), ("image", task.image), ("route", route_of(task))])
    if task.answer is not None:
        kit.section("Expected answer")
        st.json(task.answer)


def files_tab(files: dict[tuple[str, str], PackFile], *, roles: dict[str, str] | None = None) -> None:
    """The chosen file as text; nothing of it is run or rendered."""
    if not files:
        kit.empty_state("No files", "The task has no files of this kind.", icon="draft")
        return
    titles = roles or ROLES
    labels = {
        f"{role}/{path}": f"{titles[role]}: {path} ({kit.bytes_text(len(one.content))})"
        for (role, path), one in files.items()
    }
    chosen = list_choice("File", labels, "file", label_visibility="collapsed")
    role, _, path = chosen.partition("/")
    shown = preview(path, files[role, path])
    notes = [] if shown.is_text else ["no UTF-8 text: the first bytes in hexadecimal"]
    notes += ["only the beginning is shown"] if shown.cut else []
    notes += [f"{kit.counted(shown.n_hidden, 'hidden character')} written as \\u…"] if shown.n_hidden else []
    if notes:
        st.caption(". ".join(notes).capitalize() + ".")
    height: int | Literal["content"] = 560 if shown.text.count("\n") > MOST_LINES else "content"
    st.code(shown.text, language=shown.language, line_numbers=shown.is_text, wrap_lines=True, height=height)


def check_tab(task: PackTask) -> None:
    """The kind of check and its programs."""
    st.caption(CHECKERS.get(task.checker or "", "There is no check by code."))
    files_tab(
        {("checker_files", path): one for path, one in task.checker_files.items()}, roles={"checker_files": "Check"}
    )


def rubric_tab(task: PackTask) -> None:
    """Rules for a judge by level, and the rubric as text."""
    if not task.rules and not task.rubric:
        kit.empty_state("No rubric", "The task is scored by its check alone.", icon="rule")
        return
    for one in task.rules:
        kit.section(str(one["name"]), str(one["file_path"]))
        levels = sorted(one["scores"].items(), key=lambda pair: float(pair[0]))
        html_table(("score", "meaning"), [(kit.escape(level), kit.escape(text)) for level, text in levels], wide=(1,))
    if task.rubric:
        st.code(task.rubric, language=None, wrap_lines=True)
    if task.weights:
        kit.facts([(f"weight of the {name}", value) for name, value in task.weights.items()])


def attempts_tab(tried: Sequence[Tried]) -> None:
    """Success by policy version and agent, and the attempts, newest first."""
    if not tried:
        kit.empty_state(
            "No attempt yet",
            "Start a run on the Rollouts page, or with `claw-studio rollout PACK`.",
            icon="rocket_launch",
        )
        return
    made = report(Subject("", [one.trial for one in tried]))
    left, right = st.columns(2, gap="medium")
    for where, name, title in ((left, "policy_version", "By policy version"), (right, "agent", "By agent")):
        with where:
            kit.section(title)
            html_table(
                (name.replace("_", " ").capitalize(), "Attempts", "Scored", "Mean", "Solved", "Seconds"),
                [
                    (
                        kit.escape(part["name"]),
                        kit.count(part["n_attempts"]),
                        kit.count(part["n_scored"]),
                        estimate(part["mean"]),
                        estimate(part["solved"]),
                        kit.number(part["wall_s"]["mean"]),
                    )
                    for part in made["by"][name]
                ],
                numeric=(1, 2, 3, 4, 5),
            )
    kit.section("Attempts", "newest first")
    now = state.service().clock()
    html_table(
        ("Outcome", "Score", "Agent", "Policy", "Seconds", "Calls", "Tokens", "Run", "Started", "Trajectory"),
        [attempt_row(one, now) for one in tried[:SHOWN_ATTEMPTS]],
        numeric=(1, 3, 4, 5, 6),
    )
    if len(tried) > SHOWN_ATTEMPTS:
        st.caption(f"The newest {SHOWN_ATTEMPTS} of {kit.count(len(tried))}.")


def attempt_row(one: Tried, now: float) -> tuple[str, ...]:
    """A row of the table of attempts, as HTML."""
    attempt, trial = one.attempt, one.trial
    tokens = [n for n in (trial.n_prompt_tokens, trial.n_response_tokens) if n is not None]
    label = attempt.outcome or attempt.state
    uid = attempt.trajectory_uid
    inspect = state.link("inspect", trajectory=uid)
    shown = kit.escape(kit.short_uid(uid, 24))
    return (
        dot_label(label.replace("_", " "), TONES.get(attempt.outcome, "warn")),
        kit.number(attempt.score),
        kit.escape(attempt.harness),
        kit.DASH if trial.policy_version is None else str(trial.policy_version),
        kit.number(attempt.wall_s),
        kit.count(trial.n_calls),
        kit.compact(sum(tokens)) if tokens else kit.DASH,
        f'<a href="{kit.escape(state.link("rollouts", run=attempt.run))}" target="_self">{kit.escape(attempt.run)}</a>',
        kit.escape(kit.DASH if attempt.started_at is None else kit.ago(attempt.started_at, now)),
        shown if trial.n_calls is None else f'<a href="{kit.escape(inspect)}" target="_self">{shown}</a>',
    )
