"""Opinions from the screen: quality, trainable, reward overlay, tags and notes on a step, a trajectory or a group.

Facts never change here: each button appends one annotation, which the history lists and can undo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitAPIException

from core.types import Annotation, AnnotationKind
from studio import state
from studio.kit.figures import section
from studio.kit.format import ago, escape, number, quiet, verbatim
from studio.kit.html_tables import html_table, mark

SOURCE = "studio"
QUALITIES = {
    "good": ("Good", "G"),
    "bad": ("Bad", "B"),
    "unsure": ("Unsure", "U"),
}
CORRECT = {True: ("Correct", ":material/check:"), False: ("Wrong", ":material/close:")}
TRAINABLE = {"rule": None, "on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Target:
    """What an opinion is about: a step, a trajectory, or a prompt group, which means each of its ``members``."""

    kind: str
    uid: str
    members: tuple[str, ...] = ()

    def annotations(self, kind: str, value: Any, *, at: float, note: str | None = None) -> list[Annotation]:
        """The annotations that say it, by the author of this browser session."""
        field = "step_uid" if self.kind == "step" else "trajectory_uid"
        uids = self.members if self.kind == "group" else (self.uid,)
        return [
            Annotation(
                kind=kind, value=value, author=state.author(), source=SOURCE, created_at=at, note=note, **{field: uid}
            )
            for uid in uids
        ]


def say(target: Target, opinions: Sequence[tuple[str, Any]], *, label: str) -> str:
    """Append opinions (kind, value) as one entry of the history; returns its action_uid."""
    service = state.service()
    at = service.clock()
    said = [one for kind, value in opinions for one in target.annotations(kind, value, at=at)]
    return service.pool.labels.annotate(said, label=f"{label} on {target.kind} {target.uid}")


def redraw() -> None:
    """Draw the fragment anew where one runs, else the page."""
    try:
        st.rerun(scope="fragment")
    except StreamlitAPIException:
        st.rerun()


def apply(target: Target, kind: str, value: Any, *, label: str, said: Callable[[str], None] | None = None) -> None:
    """Append one opinion and redraw; ``said`` hears the action_uid."""
    action = say(target, [(kind, value)], label=label)
    if said is not None:
        said(action)
    st.toast(f"{verbatim(label)} on {target.kind} {verbatim(target.uid)}")
    redraw()


def latest(annotations: Sequence[Mapping[str, Any]], target: Target, kind: str) -> Mapping[str, Any] | None:
    """The newest standing annotation of a kind about exactly this target, or None.

    Of a group: one of its members' newest, if they all say the same.
    """
    if target.kind == "group":
        newest = [latest(annotations, Target("trajectory", uid), kind) for uid in target.members]
        values = {None if one is None else one["value"] for one in newest}
        return newest[-1] if len(values) == 1 else None
    standing = [
        row
        for row in annotations
        if row["kind"] == kind and not row.get("undone") and _about(row) == (target.kind, target.uid)
    ]
    return standing[-1] if standing else None


Said = Callable[[str], None]


def label_panel(
    target: Target,
    *,
    current: Mapping[str, Any],
    annotations: Sequence[Mapping[str, Any]],
    captured_reward: float | None,
    shortcuts: bool,
    quality: bool = True,
    said: Said | None = None,
) -> None:
    """All label controls of one target.

    Args:
        target: what the labels are about.
        current: its effective state: quality, trainable, reward, tags.
        annotations: its annotations, oldest first, as ``pool.labels.annotations`` gives them.
        captured_reward: the reward that came with the data; an edit lies over it and never replaces it.
        shortcuts: whether G, B and U label this target.
        quality: whether to draw the buttons of quality and correctness.
        said: hears the action_uid of each change, before the redraw.
    """
    key = f"label-{target.kind}-{target.uid}"
    tags = [str(tag) for tag in current["tags"] if tag] if current.get("tags") is not None else []
    if quality:
        _quality(target, current.get("quality"), key, shortcuts, said)
        _correct(target, current.get("correct"), key, said)
    _trainable(target, bool(current.get("trainable")), annotations, key, said)
    _reward(target, current.get("reward"), captured_reward, annotations, key, said)
    _tags(target, tags, key, said)
    _note(target, key, said)


def _quality(target: Target, standing: str | None, key: str, shortcuts: bool, said: Said | None) -> None:
    with st.container(horizontal=True, gap="xsmall", key="label-quality"):
        for value, (label, letter) in QUALITIES.items():
            on = standing == value
            if st.button(
                label,
                key=f"{key}-{value}",
                type="primary" if on else "secondary",
                shortcut=letter if shortcuts else None,
                help="Click again to withdraw" if on else None,
                width="stretch",
            ):
                text = "quality withdrawn" if on else f"quality: {value}"
                apply(target, AnnotationKind.QUALITY, None if on else value, label=text, said=said)


def _correct(target: Target, standing: bool | None, key: str, said: Said | None) -> None:
    with st.container(horizontal=True, gap="xsmall"):
        for value, (label, icon) in CORRECT.items():
            on = standing == value
            if st.button(
                label,
                icon=icon,
                key=f"{key}-correct-{value}",
                type="primary" if on else "secondary",
                help="Click again to withdraw" if on else "Whether the task was solved, whatever the reward says",
                width="stretch",
            ):
                text = "correctness withdrawn" if on else label.lower()
                apply(target, AnnotationKind.CORRECT, None if on else value, label=text, said=said)


def _trainable(
    target: Target, effective: bool, annotations: Sequence[Mapping[str, Any]], key: str, said: Said | None
) -> None:
    opinion = latest(annotations, target, AnnotationKind.TRAINABLE)
    value = None if opinion is None else opinion["value"]
    standing = "rule" if value is None else "on" if value else "off"
    chosen = st.segmented_control(
        f"Trainable (counts as {'on' if effective else 'off'})",
        list(TRAINABLE),
        default=standing,
        format_func=lambda name: {"rule": "By rule", "on": "On", "off": "Off"}[name],
        required=True,
        key=f"{key}-trainable-{standing}-{len(annotations)}",
        help="By rule: main calls sampled without fault are trainable.",
        width="stretch",
    )
    if chosen != standing:
        apply(target, AnnotationKind.TRAINABLE, TRAINABLE[chosen], label=f"trainable: {chosen}", said=said)


def _reward(
    target: Target,
    effective: float | None,
    captured: float | None,
    annotations: Sequence[Mapping[str, Any]],
    key: str,
    said: Said | None,
) -> None:
    opinion = latest(annotations, target, AnnotationKind.REWARD)
    overlay = opinion is not None and opinion["value"] is not None
    with st.container(horizontal=True, gap="xsmall", vertical_alignment="bottom"):
        entered = st.number_input(
            "Reward",
            value=effective,
            placeholder="unscored",
            format="%.4g",
            key=f"{key}-reward-{len(annotations)}",
            help="An edit lies over the captured reward and can be withdrawn.",
        )
        if st.button("Set", key=f"{key}-set", disabled=entered is None or entered == effective):
            apply(target, AnnotationKind.REWARD, entered, label=f"reward: {number(entered)}", said=said)
        if overlay and st.button("Withdraw", key=f"{key}-withdraw"):
            apply(target, AnnotationKind.REWARD, None, label="reward withdrawn", said=said)
    if overlay and opinion is not None:
        before = f"captured {number(captured)} · " if target.kind == "step" else ""
        st.html(quiet(f"{before}{opinion['author']} says {number(opinion['value'])}"))


def _tags(target: Target, standing: list[str], key: str, said: Said | None) -> None:
    chosen = st.multiselect(
        "Tags",
        standing,
        default=standing,
        accept_new_options=True,
        placeholder="Add a tag",
        key=f"{key}-tags-{'|'.join(standing)}",
    )
    changed = [tag for tag in chosen if tag not in standing] + [f"-{tag}" for tag in standing if tag not in chosen]
    if changed:
        action = say(target, [(AnnotationKind.TAG, tag) for tag in changed], label=f"tags: {', '.join(changed)}")
        if said is not None:
            said(action)
        redraw()


def _note(target: Target, key: str, said: Said | None) -> None:
    with st.form(f"{key}-note-form", border=False, clear_on_submit=True):
        text = st.text_area("Note", key=f"{key}-note", height=68, placeholder="What should a colleague know?")
        if st.form_submit_button("Add note", width="stretch") and text.strip():
            apply(target, AnnotationKind.NOTE, text.strip(), label="note", said=said)


def history(annotations: Sequence[Mapping[str, Any]], *, now: float) -> None:
    """Every opinion about a trajectory and its steps, newest first, with its author and time."""
    section("Annotations", "appended, never overwritten; undo is in Curate")
    if not annotations:
        st.caption("Nobody has labelled this yet.")
        return
    rows = []
    for row in reversed(annotations):
        value = row["value"]
        shown = "withdrawn" if value is None else number(value) if isinstance(value, float) else str(value)
        about = f"step {row['step_uid'][:12]}" if row.get("step_uid") else "trajectory"
        rows.append(
            (
                mark("undone", "muted") if row.get("undone") else mark(row["kind"], "good"),
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
