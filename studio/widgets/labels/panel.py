"""The label panel: quality, correctness, trainable, reward, tags and notes of a step, a trajectory or a group.

Each control appends annotations, which are listed in the history and can be undone. Facts are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitAPIException

from core.errors import StudioError
from core.types import Annotation, AnnotationKind
from studio import state
from studio.kit.callouts import show_error
from studio.kit.figures import section
from studio.kit.format import ago, caption_html, counted, escape, escape_markdown, number
from studio.kit.html_tables import dot_label, html_table

SOURCE = "studio"
REFUSED = "label-refused"
"""Key of the session state: why the last click labelled nothing."""
QUALITIES = {
    "good": ("Good", "G"),
    "bad": ("Bad", "B"),
    "unsure": ("Unsure", "U"),
}
CORRECT = {True: ("Correct", ":material/check:"), False: ("Wrong", ":material/close:")}
EDIT_CHARS = 120
TRAINABLE = {"rule": None, "on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a label: a step, a trajectory, or a prompt group (each of its ``members``)."""

    kind: str
    uid: str
    members: tuple[str, ...] = ()

    def annotations(self, kind: str, value: Any, *, at: float, note: str | None = None) -> list[Annotation]:
        """The annotations of this label, by the author of this browser session."""
        field = "step_uid" if self.kind == "step" else "trajectory_uid"
        uids = self.members if self.kind == "group" else (self.uid,)
        return [
            Annotation(
                kind=kind, value=value, author=state.author(), source=SOURCE, created_at=at, note=note, **{field: uid}
            )
            for uid in uids
        ]


def annotate(target: Target, opinions: Sequence[tuple[str, Any]], *, label: str) -> str:
    """Append labels (kind, value) as one entry of the history; return its action_uid."""
    service = state.service()
    at = service.clock()
    annotations = [one for kind, value in opinions for one in target.annotations(kind, value, at=at)]
    return service.pool.labels.annotate(annotations, label=f"{label} on {target.kind} {target.uid}")


def redraw() -> None:
    """Rerun the fragment if one is running, else the page."""
    try:
        st.rerun(scope="fragment")
    except StreamlitAPIException:
        st.rerun()


def annotate_by_click(
    target: Target, kind: str, value: Any, label: str, on_annotated: Callable[[str], None] | None = None
) -> None:
    """Append one label. A callback: it runs before the page, so no click that follows can interrupt it."""
    try:
        action = annotate(target, [(kind, value)], label=label)
    except StudioError as error:
        st.session_state[REFUSED] = error
        return
    if on_annotated is not None:
        on_annotated(action)
    st.toast(f"{escape_markdown(label)} on {target.kind} {escape_markdown(target.uid)}")


def annotate_and_redraw(
    target: Target, kind: str, value: Any, *, label: str, on_annotated: Callable[[str], None] | None = None
) -> None:
    """Append one label and redraw; ``on_annotated`` is called with the action_uid before."""
    action = annotate(target, [(kind, value)], label=label)
    if on_annotated is not None:
        on_annotated(action)
    st.toast(f"{escape_markdown(label)} on {target.kind} {escape_markdown(target.uid)}")
    redraw()


def latest(annotations: Sequence[Mapping[str, Any]], target: Target, kind: str) -> Mapping[str, Any] | None:
    """The newest annotation of a kind on exactly this target that is not undone, or None.

    For a group: the newest of a member, if all members have the same value.
    """
    if target.kind == "group":
        newest = [latest(annotations, Target("trajectory", uid), kind) for uid in target.members]
        values = {None if one is None else one["value"] for one in newest}
        return newest[-1] if len(values) == 1 else None
    active = [
        row
        for row in annotations
        if row["kind"] == kind and not row.get("undone") and _about(row) == (target.kind, target.uid)
    ]
    return active[-1] if active else None


OnAnnotated = Callable[[str], None]


def label_panel(
    target: Target,
    *,
    current: Mapping[str, Any],
    annotations: Sequence[Mapping[str, Any]],
    captured_reward: float | None,
    shortcuts: bool,
    quality: bool = True,
    on_annotated: OnAnnotated | None = None,
) -> None:
    """All label controls of one target.

    Args:
        target: what the labels are about.
        current: its effective state: quality, trainable, reward, tags.
        annotations: its annotations, oldest first, as ``pool.labels.annotations`` gives them.
        captured_reward: the reward that came with the data; a label overrides it and never replaces it.
        shortcuts: whether G, B and U label this target.
        quality: whether to draw the buttons of quality and correctness.
        on_annotated: called with the action_uid of each change, before the redraw.
    """
    key = f"label-{target.kind}-{target.uid}"
    if (refused := st.session_state.pop(REFUSED, None)) is not None:
        show_error(refused)
    tags = [str(tag) for tag in current["tags"] if tag] if current.get("tags") is not None else []
    if quality:
        _quality(target, current.get("quality"), key, shortcuts, on_annotated)
        _correct(target, current.get("correct"), key, on_annotated)
    _trainable(target, bool(current.get("trainable")), annotations, key, on_annotated)
    _reward(target, current.get("reward"), captured_reward, annotations, key, on_annotated)
    _tags(target, tags, key, on_annotated)
    _note(target, key, on_annotated)


def _quality(target: Target, current: str | None, key: str, shortcuts: bool, on_annotated: OnAnnotated | None) -> None:
    with st.container(horizontal=True, gap="xsmall", key="label-quality"):
        for value, (label, letter) in QUALITIES.items():
            on = current == value
            text = "quality withdrawn" if on else f"quality: {value}"
            st.button(
                label,
                key=f"{key}-{value}",
                type="primary" if on else "secondary",
                shortcut=letter if shortcuts else None,
                help="Click again to withdraw" if on else f"Key {letter}" if shortcuts else None,
                width="stretch",
                on_click=annotate_by_click,
                args=(target, AnnotationKind.QUALITY, None if on else value, text, on_annotated),
            )


def _correct(target: Target, current: bool | None, key: str, on_annotated: OnAnnotated | None) -> None:
    with st.container(horizontal=True, gap="xsmall"):
        for value, (label, icon) in CORRECT.items():
            on = current == value
            text = "correctness withdrawn" if on else label.lower()
            st.button(
                label,
                icon=icon,
                key=f"{key}-correct-{value}",
                type="primary" if on else "secondary",
                help="Click again to withdraw" if on else "Whether the task was solved, independent of the reward",
                width="stretch",
                on_click=annotate_by_click,
                args=(target, AnnotationKind.CORRECT, None if on else value, text, on_annotated),
            )


def _trainable(
    target: Target,
    effective: bool,
    annotations: Sequence[Mapping[str, Any]],
    key: str,
    on_annotated: OnAnnotated | None,
) -> None:
    opinion = latest(annotations, target, AnnotationKind.TRAINABLE)
    value = None if opinion is None else opinion["value"]
    current = "rule" if value is None else "on" if value else "off"
    chosen = st.segmented_control(
        f"Trainable (counts as {'on' if effective else 'off'})",
        list(TRAINABLE),
        default=current,
        format_func=lambda name: {"rule": "By rule", "on": "On", "off": "Off"}[name],
        required=True,
        key=f"{key}-trainable-{current}-{len(annotations)}",
        help="By rule: main calls sampled without errors are trainable.",
        width="stretch",
    )
    if chosen != current:
        annotate_and_redraw(
            target, AnnotationKind.TRAINABLE, TRAINABLE[chosen], label=f"trainable: {chosen}", on_annotated=on_annotated
        )


def _reward(
    target: Target,
    effective: float | None,
    captured: float | None,
    annotations: Sequence[Mapping[str, Any]],
    key: str,
    on_annotated: OnAnnotated | None,
) -> None:
    opinion = latest(annotations, target, AnnotationKind.REWARD)
    overlay = opinion is not None and opinion["value"] is not None
    n_given = sum(one["kind"] == AnnotationKind.REWARD for one in annotations)
    field = f"{key}-reward-{n_given}-{effective}"
    with st.container(horizontal=True, gap="xsmall", vertical_alignment="bottom"):
        entered = st.number_input(
            "Reward",
            value=effective,
            placeholder="unscored",
            format="%.4g",
            # Another reward begins the input anew; other labels leave what is being typed.
            key=field,
            help="A label overrides the captured reward and can be withdrawn.",
        )
        st.button(
            "Set",
            key=f"{key}-set",
            disabled=entered is None or entered == effective,
            on_click=_set_reward,
            args=(target, field, on_annotated),
        )
        if overlay:
            st.button(
                "Withdraw",
                key=f"{key}-withdraw",
                on_click=annotate_by_click,
                args=(target, AnnotationKind.REWARD, None, "reward withdrawn", on_annotated),
            )
    if overlay and opinion is not None:
        before = f"captured {number(captured)} · " if target.kind == "step" else ""
        st.html(caption_html(f"{before}{opinion['author']} says {number(opinion['value'])}"))


def _set_reward(target: Target, field: str, on_annotated: OnAnnotated | None) -> None:
    # The field's value as of the click: it may have changed since the page was drawn.
    entered = st.session_state.get(field)
    if entered is not None:
        annotate_by_click(target, AnnotationKind.REWARD, entered, f"reward: {number(entered)}", on_annotated)


def _tags(target: Target, current: list[str], key: str, on_annotated: OnAnnotated | None) -> None:
    chosen = st.multiselect(
        "Tags",
        current,
        default=current,
        accept_new_options=True,
        placeholder="Add a tag",
        key=f"{key}-tags-{'|'.join(current)}",
    )
    changed = [tag for tag in chosen if tag not in current] + [f"-{tag}" for tag in current if tag not in chosen]
    if changed:
        action = annotate(target, [(AnnotationKind.TAG, tag) for tag in changed], label=f"tags: {', '.join(changed)}")
        if on_annotated is not None:
            on_annotated(action)
        redraw()


def _note(target: Target, key: str, on_annotated: OnAnnotated | None) -> None:
    with st.form(f"{key}-note-form", border=False, clear_on_submit=True):
        text = st.text_area("Note", key=f"{key}-note", height=68, placeholder="What should a colleague know?")
        if st.form_submit_button("Add note", width="stretch") and text.strip():
            annotate_and_redraw(target, AnnotationKind.NOTE, text.strip(), label="note", on_annotated=on_annotated)


def annotation_history(annotations: Sequence[Mapping[str, Any]], *, now: float) -> None:
    """Every annotation of a trajectory and its steps, newest first, with its author and time."""
    section("Annotations", "appended, never overwritten; undo them in Curate")
    if not annotations:
        st.caption("No label yet.")
        return
    rows = []
    for row in reversed(annotations):
        value = row["value"]
        shown = "withdrawn" if value is None else number(value) if isinstance(value, float) else str(value)
        if row["kind"] == AnnotationKind.EDIT and value is not None:
            shown = f"{counted(len(value['response_ids']), 'token')}: {value['text'][:EDIT_CHARS]}"
        about = f"step {row['step_uid'][:12]}" if row.get("step_uid") else "trajectory"
        rows.append(
            (
                dot_label("undone", "muted") if row.get("undone") else dot_label(row["kind"], "good"),
                escape(shown),
                escape(about),
                escape(row["author"]),
                escape(row["source"]),
                escape(row.get("note") or ""),
                escape(ago(row["created_at"], now)),
            )
        )
    html_table(("kind", "value", "about", "author", "source", "note", "when"), rows)


def _about(row: Mapping[str, Any]) -> tuple[str, str | None]:
    return ("step", row["step_uid"]) if row.get("step_uid") else ("trajectory", row.get("trajectory_uid"))
