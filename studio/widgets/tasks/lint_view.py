"""What the lint finds in a pack: findings by level, and near-duplicates as pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import streamlit as st

from core.packs import Pack
from core.packs.lint import LEVELS, Finding, lint
from studio import kit, state
from studio.kit.figures import Tone
from studio.kit.html_tables import dot_label, html_table
from studio.kit.jobs import Job
from studio.kit.url_choices import list_choice

JOB = "tasks-lint"
TONES: dict[str, Tone] = {"error": "bad", "warning": "warn", "note": "muted"}
PAIRS = "near_duplicate"
SHOWN = 300
QUERY_CHARACTERS = 120


class LintJob(Job):
    """One lint of a pack. ``findings`` is set at its end."""

    def __init__(self, pack: Pack) -> None:
        super().__init__("lint", 1, "the lint was cancelled")
        self.version = pack.version
        self.findings: list[Finding] | None = None
        self._pack = pack
        self.start()

    def work(self) -> None:
        """Run the checks that read a pack and run nothing."""
        self.findings = lint(self._pack)


def lint_tab(pack: Pack) -> None:
    """Findings of the pack; they are made when the tab is opened first."""
    job: LintJob | None = st.session_state.get(JOB)
    if job is None or job.version != pack.version:
        job = st.session_state[JOB] = LintJob(pack)
        job.join(1.0)  # small packs are done by then
    if job.running:
        kit.live(0.5)(_progress)(job)
    elif job.error is not None:
        kit.show_error(job.error)
    elif job.findings is not None:
        findings_view(pack, job.findings)


def _progress(job: LintJob) -> None:
    if not job.running:
        st.rerun()
    st.caption("Checking…")


def findings_view(pack: Pack, findings: Sequence[Finding]) -> None:
    """Figures, the findings of the chosen kind, and the pairs."""
    levels = Counter(one.level for one in findings)
    figures = [
        kit.Figure(
            f"{level.capitalize()}s", kit.count(levels[level]), sub=meaning, tone=TONES[level] if levels[level] else ""
        )
        for level, meaning in LEVELS.items()
    ]
    kit.figures([*figures, kit.Figure("Tasks", kit.count(len(pack.tasks)), sub="checked without running anything")])
    st.caption("`claw-studio pack lint PATH --run` also runs every check on its untouched workspace.")
    others = [one for one in findings if one.check != PAIRS]
    pairs = [one for one in findings if one.check == PAIRS]
    if not findings:
        kit.empty_state("Nothing found", "The lint found no problem.", icon="task_alt")
        return
    if others:
        kinds = Counter(one.check for one in others)
        labels = {"": f"All findings ({len(others)})"}
        labels |= {kind: f"{kind.replace('_', ' ')} ({n})" for kind, n in kinds.most_common()}
        kind = list_choice("Kind", labels, "finding", label_visibility="collapsed")
        shown = [one for one in others if kind in ("", one.check)]
        html_table(
            ("level", "finding", "task", "message"),
            [
                (
                    dot_label(one.level, TONES[one.level]),
                    kit.escape(one.check.replace("_", " ")),
                    " ".join(task_link(task_id) for task_id in one.task_ids),
                    kit.escape(one.message),
                )
                for one in shown[:SHOWN]
            ],
            wide=(3,),
        )
        if len(shown) > SHOWN:
            st.caption(f"The first {SHOWN} of {kit.count(len(shown))}.")
    if pairs:
        kit.section("Near-duplicates", "pairs whose queries share most of their word triples, most similar first")
        html_table(
            ("Similarity", "Task", "Query", "Task", "Query", "Input files"),
            [pair_row(pack, one) for one in pairs[:SHOWN]],
            numeric=(0,),
            wide=(2, 4),
        )
        if len(pairs) > SHOWN:
            st.caption(f"The first {SHOWN} of {kit.count(len(pairs))}.")


def pair_row(pack: Pack, one: Finding) -> tuple[str, ...]:
    """A pair of near-duplicates as cells of HTML."""
    first, second = (pack.by_id[task_id] for task_id in one.task_ids)
    same = {path: file.sha256 for path, file in first.input_files.items()} == {
        path: file.sha256 for path, file in second.input_files.items()
    }
    cells = [kit.percent(one.similarity)]
    for task in (first, second):
        query = " ".join(task.query.split())
        cells += [task_link(task.task_id), kit.escape(query[:QUERY_CHARACTERS] + "…" * (len(query) > QUERY_CHARACTERS))]
    return (*cells, "the same" if same else "differ")


def task_link(task_id: str) -> str:
    """A task's id as a link to its page, in the pack that is shown."""
    known = {"pack": state.query("pack"), "task": task_id}
    href = state.link("tasks", **{name: value for name, value in known.items() if value})
    return f'<a class="id" href="{kit.escape(href)}" target="_self">{kit.escape(task_id)}</a>'
