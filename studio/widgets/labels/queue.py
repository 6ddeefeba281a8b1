"""The review queue: one item at a time, driven by keys, with the next item prefetched.

The queue is fixed when it is made, so that a label does not change what comes next. A button, or another view, level
or order, makes a new one. Everything below the controls is one fragment: a key press does not query the facets again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from core.errors import NotFound
from core.pool.review import ORDERS
from core.types import AnnotationKind, View
from studio import kit, state
from studio.kit.filters import view_hash
from studio.kit.url_choices import segmented_choice
from studio.widgets.labels.panel import CORRECT, QUALITIES, Target, annotate, label_panel, latest
from studio.widgets.labels.queue_item import ReviewItem, draw_item, load_item

LEVELS = {"trajectory": "Trajectories", "step": "Steps", "group": "Prompt groups"}
CORRECT_KEYS = {True: "Y", False: "X"}
LIMIT = 1000
QUICK_TAGS = 5
CACHED_ITEMS = 8


@dataclass(slots=True)
class ReviewQueue:
    """A queue and the reviewer's position in it.

    Attributes:
        key: the settings it was made for.
        uids: the items in order.
        done: the items that have a label of this reviewer.
        actions: labels that can be undone: (action_uid, place, whether it was the reviewer's first label of the item).
        items: loaded items, including the next one.
    """

    key: str
    level: str
    uids: list[str]
    done: set[str]
    place: int = 0
    actions: list[tuple[str, int, bool]] = field(default_factory=list)
    items: dict[str, ReviewItem] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        """The current item."""
        return self.uids[self.place]

    def move(self, by: int) -> None:
        """Go forward or back, within the queue."""
        self.place = min(max(self.place + by, 0), len(self.uids) - 1)

    def item(self, uid: str) -> ReviewItem:
        """An item, cached; the oldest are dropped."""
        if uid not in self.items:
            self.items[uid] = load_item(state.service().pool, self.level, uid)
            while len(self.items) > CACHED_ITEMS:
                self.items.pop(next(iter(self.items)))
        return self.items[uid]


def review_tab(view: View) -> None:
    """Level, order and what to skip; then the queue."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        level = segmented_choice("Level", LEVELS, "level")
        order = segmented_choice("Order", {name: one.label for name, one in ORDERS.items()}, "order")
        skip = st.toggle("Skip my labels", key="review-skip", value=True, help="Leave out what I have labelled already")
        again = st.button("", icon=":material/refresh:", type="tertiary", key="review-again", help="Rebuild the queue")
    st.caption(ORDERS[order].doc)
    queue = queue_for(view, level, order, skip, again)
    if not queue.uids:
        kit.empty_state("Nothing to review", "Remove a filter, or include what you have labelled.", icon="task_alt")
        return
    draw_queue(queue)


def queue_for(view: View, level: str, order: str, skip: bool, again: bool) -> ReviewQueue:
    """The session's queue for these settings, made when first needed; it starts at the item in the URL."""
    key = f"{view_hash(view)}-{level}-{order}-{skip}-{state.author()}"
    kept: ReviewQueue | None = st.session_state.get("review-queue")
    if kept is not None and kept.key == key and not again:
        return kept
    listed = state.service().pool.review.queue(view, level, order, author=state.author(), limit=LIMIT).to_pylist()
    requested = None if again else state.query("item")
    rows = [row for row in listed if not skip or row["mine"] is None or row["uid"] == requested]
    uids = [row["uid"] for row in rows]
    if requested is not None and requested not in uids and item_exists(level, requested):
        uids.insert(0, requested)
    queue = ReviewQueue(key, level, uids, {row["uid"] for row in rows if row["mine"] is not None})
    queue.place = uids.index(requested) if requested in uids else 0
    st.session_state["review-queue"] = queue
    return queue


def item_exists(level: str, uid: str) -> bool:
    """Whether an item of this level with this uid exists."""
    try:
        state.service().pool.review.standing(level, uid)
    except NotFound:
        return False
    return True


@st.fragment
def draw_queue(queue: ReviewQueue) -> None:
    """Draw the current item, its label controls, and the navigation."""
    with kit.error_boundary():
        state.set_query(item=queue.uid)
        progress(queue)
        item = queue.item(queue.uid)
        left, right = st.columns([7, 2.6], gap="medium")
        with right:
            label_controls(queue, item)
        with left, st.container(height=620, border=False, key="review-item"):
            draw_item(item)
        if queue.place + 1 < len(queue.uids):
            queue.item(queue.uids[queue.place + 1])


def progress(queue: ReviewQueue) -> None:
    """Draw the position in the queue, and the buttons that move."""
    n = len(queue.uids)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="review-progress"):
        st.html(
            f'<div class="cs-review"><b>{queue.place + 1:,}</b> of {n:,}{"+" if n == LIMIT else ""}'
            f'<span>{len(queue.done):,} labelled</span><div class="track"><i style="width:'
            f'{100 * len(queue.done) / n:.1f}%"></i></div></div>',
            width="stretch",
        )
        at = queue.place
        st.button("Previous", key="review-previous", shortcut="K", disabled=at == 0, on_click=move, args=(at, -1))
        st.button("Next", key="review-next", shortcut="J", disabled=at + 1 == n, on_click=move, args=(at, 1))
        st.button(
            "Undo", key="review-undo", shortcut="Z", disabled=not queue.actions, on_click=undo, help="Undo and go back"
        )


def target_of(item: ReviewItem) -> Target:
    """The target of the item's labels."""
    return Target(item.level, item.uid, item.members)


def label_controls(queue: ReviewQueue, item: ReviewItem) -> None:
    """Draw buttons with shortcuts for quality, correctness, trainable and tags, and the other labels below."""
    pool = state.service().pool
    current = pool.review.standing(item.level, item.uid)
    annotations: list[dict[str, Any]] = []
    for uid in item.members or (item.trajectory_uid,):
        annotations += pool.labels.annotations(trajectory_uid=uid)
    target = target_of(item)
    with st.container(horizontal=True, gap="xsmall", key="review-quality"):
        for value, (label, letter) in QUALITIES.items():
            st.button(
                label,
                key=f"review-{value}",
                type="primary" if current["quality"] == value else "secondary",
                shortcut=letter,
                on_click=set_quality,
                args=(target, value),
                width="stretch",
                help="Label and go to the next item",
            )
    other_opinions(annotations, target)
    with st.container(horizontal=True, gap="xsmall", key="review-correctness"):
        for correct, (label, icon) in CORRECT.items():
            on = current["correct"] == correct
            st.button(
                label,
                icon=icon,
                key=f"review-{label.lower()}",
                type="primary" if on else "secondary",
                shortcut=CORRECT_KEYS[correct],
                on_click=set_correct,
                args=(target, None if on else correct),
                width="stretch",
            )
    st.button(
        f"Trainable: {'on' if current['trainable'] else 'off'}",
        icon=":material/toggle_on:" if current["trainable"] else ":material/toggle_off:",
        key="review-trainable",
        shortcut="T",
        width="stretch",
        on_click=set_trainable,
        args=(target, not current["trainable"]),
    )
    quick_tags(target, [str(tag) for tag in current["tags"]])
    with st.expander("Reward, tags, note", icon=":material/edit:"):
        label_panel(
            target,
            current=current,
            annotations=annotations,
            captured_reward=current.get("original_reward"),
            shortcuts=False,
            quality=False,
            on_annotated=record_action,
        )


def other_opinions(annotations: list[dict[str, Any]], target: Target) -> None:
    """Draw the quality label of each reviewer, if there is one."""
    authors = list(dict.fromkeys(row["author"] for row in annotations))
    opinions = []
    for author in authors:
        author_rows = [row for row in annotations if row["author"] == author]
        row: Mapping[str, Any] | None = latest(author_rows, target, AnnotationKind.QUALITY)
        if row is not None and row["value"] is not None:
            opinions.append(f"{kit.escape(author)} says <b>{kit.escape(row['value'])}</b>")
    if opinions:
        st.html(f'<div class="cs-note">{" · ".join(opinions)}</div>')


def quick_tags(target: Target, current: list[str]) -> None:
    """Draw buttons for the most used tags of the pool, with digits as shortcuts."""
    counted = state.service().pool.stats.facets(View(), ["tags"])["tags"]
    names = [str(tag) for tag, _ in counted if tag][:QUICK_TAGS]
    if not names:
        return
    with st.container(horizontal=True, gap="xsmall", key="review-tags"):
        for place, name in enumerate(names):
            on = name in current
            st.button(
                kit.escape_markdown(name),
                key=f"review-tag-{place}",
                shortcut=str(place + 1),
                type="primary" if on else "secondary",
                on_click=add_tag,
                args=(target, f"-{name}" if on else name),
            )


# Callbacks run before the fragment is drawn, so one key press draws it once.


def session_queue() -> ReviewQueue:
    """The queue of this session."""
    queue: ReviewQueue = st.session_state["review-queue"]
    return queue


def move(place: int, by: int) -> None:
    """J and K. A repeated key press that arrives before the redraw still has the old ``place`` and is ignored."""
    queue = session_queue()
    if queue.place == place:
        queue.move(by)


def record_action(action_uid: str, labelled: bool = False) -> None:
    """Store an action for undo; ``labelled``: it is the reviewer's first label of the item."""
    queue = session_queue()
    queue.actions.append((action_uid, queue.place, labelled))


def set_quality(target: Target, value: str) -> None:
    """G, B and U: label the quality and go to the next item; a repeated press before the redraw is ignored."""
    queue = session_queue()
    if queue.uid != target.uid:
        return
    record_action(
        annotate(target, [(AnnotationKind.QUALITY, value)], label=f"quality: {value}"), target.uid not in queue.done
    )
    queue.done.add(target.uid)
    queue.move(1)


def set_correct(target: Target, value: bool | None) -> None:
    """Y and X: label the correctness."""
    label = "correctness withdrawn" if value is None else "correct" if value else "wrong"
    record_action(annotate(target, [(AnnotationKind.CORRECT, value)], label=label))


def set_trainable(target: Target, value: bool) -> None:
    """T: switch trainable."""
    record_action(annotate(target, [(AnnotationKind.TRAINABLE, value)], label=f"trainable: {'on' if value else 'off'}"))


def add_tag(target: Target, name: str) -> None:
    """A digit: add a tag, or remove it (``-name``)."""
    record_action(annotate(target, [(AnnotationKind.TAG, name)], label=f"tag: {name}"))


def undo() -> None:
    """Z: undo the last label and go back to its item."""
    queue = session_queue()
    action_uid, place, labelled = queue.actions.pop()
    state.service().pool.labels.undo(action_uid)
    queue.place = place
    if labelled:
        queue.done.discard(queue.uid)
