"""The review queue: one item after another, by keyboard, the next one read ahead.

The queue is fixed when it is made (a label must not move what comes next), so it is made anew by a button or by
another view, level or order. Everything below the controls is one fragment: a key press never asks the facets again.
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
from studio.kit.filters import signature
from studio.kit.url_choices import choose
from studio.widgets.labels.panel import CORRECT, QUALITIES, Target, label_panel, latest, say
from studio.widgets.labels.queue_item import Item, draw_item, load_item

LEVELS = {"trajectory": "Trajectories", "step": "Steps", "group": "Prompt groups"}
CORRECT_KEYS = {True: "Y", False: "X"}
LIMIT = 1000
QUICK_TAGS = 5
AHEAD = 8


@dataclass(slots=True)
class Queue:
    """A queue as it was made, and where the reviewer stands.

    Attributes:
        key: the settings it was made for.
        uids: the items in order; ``done`` of them have the reviewer's label.
        said: what to undo: (action_uid, place, whether it was the reviewer's first label of the item).
        items: those that were read, the next one among them.
    """

    key: str
    level: str
    uids: list[str]
    done: set[str]
    place: int = 0
    said: list[tuple[str, int, bool]] = field(default_factory=list)
    items: dict[str, Item] = field(default_factory=dict)

    @property
    def uid(self) -> str:
        """The item in sight."""
        return self.uids[self.place]

    def move(self, by: int) -> None:
        """Go on or back; the ends hold."""
        self.place = min(max(self.place + by, 0), len(self.uids) - 1)

    def item(self, uid: str) -> Item:
        """An item, read once; the oldest are let go."""
        if uid not in self.items:
            self.items[uid] = load_item(state.service().pool, self.level, uid)
            while len(self.items) > AHEAD:
                self.items.pop(next(iter(self.items)))
        return self.items[uid]


def review_tab(view: View) -> None:
    """Level, order and what to skip; then the queue."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        level = choose("Level", LEVELS, "level")
        order = choose("Order", {name: one.label for name, one in ORDERS.items()}, "order")
        skip = st.toggle("Skip mine", key="review-skip", value=True, help="Leave out what I have labelled already")
        again = st.button("", icon=":material/refresh:", type="tertiary", key="review-again", help="Queue anew")
    st.caption(ORDERS[order].doc)
    queue = standing_queue(view, level, order, skip, again)
    if not queue.uids:
        kit.empty_state("Nothing to review", "Take a filter off, or include what you have labelled.", icon="task_alt")
        return
    desk(queue)


def standing_queue(view: View, level: str, order: str, skip: bool, again: bool) -> Queue:
    """This session's queue for these settings, made on first sight; the URL's item is where it starts."""
    key = f"{signature(view)}-{level}-{order}-{skip}-{state.author()}"
    kept: Queue | None = st.session_state.get("review-queue")
    if kept is not None and kept.key == key and not again:
        return kept
    listed = state.service().pool.review.queue(view, level, order, author=state.author(), limit=LIMIT).to_pylist()
    asked = None if again else state.query("item")
    rows = [row for row in listed if not skip or row["mine"] is None or row["uid"] == asked]
    uids = [row["uid"] for row in rows]
    if asked is not None and asked not in uids and known(level, asked):
        uids.insert(0, asked)
    made = Queue(key, level, uids, {row["uid"] for row in rows if row["mine"] is not None})
    made.place = uids.index(asked) if asked in uids else 0
    st.session_state["review-queue"] = made
    return made


def known(level: str, uid: str) -> bool:
    """Whether the URL's item is one of this level."""
    try:
        state.service().pool.review.standing(level, uid)
    except NotFound:
        return False
    return True


@st.fragment
def desk(queue: Queue) -> None:
    """The item in sight, its labels, and the keys."""
    with kit.error_boundary():
        state.set_query(item=queue.uid)
        progress(queue)
        item = queue.item(queue.uid)
        left, right = st.columns([7, 2.6], gap="medium")
        with right:
            labels(queue, item)
        with left, st.container(height=620, border=False, key="review-item"):
            draw_item(item)
        if queue.place + 1 < len(queue.uids):
            queue.item(queue.uids[queue.place + 1])


def progress(queue: Queue) -> None:
    """Where the reviewer stands, with the keys that move."""
    n = len(queue.uids)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="review-progress"):
        st.html(
            f'<div class="cs-review"><b>{queue.place + 1:,}</b> of {n:,}{"+" if n == LIMIT else ""}'
            f'<span>{len(queue.done):,} labelled</span><div class="track"><i style="width:'
            f'{100 * len(queue.done) / n:.1f}%"></i></div></div>',
            width="stretch",
        )
        at = queue.place
        st.button("Previous", key="review-previous", shortcut="K", disabled=at == 0, on_click=step, args=(at, -1))
        st.button("Next", key="review-next", shortcut="J", disabled=at + 1 == n, on_click=step, args=(at, 1))
        st.button(
            "Undo", key="review-undo", shortcut="Z", disabled=not queue.said, on_click=undo, help="Undo and go back"
        )


def target_of(item: Item) -> Target:
    """What a label of the item is about."""
    return Target(item.level, item.uid, item.members)


def labels(queue: Queue, item: Item) -> None:
    """Quality and trainable by key, the rest below."""
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
                on_click=rate,
                args=(target, value),
                width="stretch",
                help="Say it and go on",
            )
    others(annotations, target)
    with st.container(horizontal=True, gap="xsmall", key="review-correctness"):
        for said, (label, icon) in CORRECT.items():
            on = current["correct"] == said
            st.button(
                label,
                icon=icon,
                key=f"review-{label.lower()}",
                type="primary" if on else "secondary",
                shortcut=CORRECT_KEYS[said],
                on_click=solve,
                args=(target, None if on else said),
                width="stretch",
            )
    st.button(
        f"Trainable: {'on' if current['trainable'] else 'off'}",
        icon=":material/toggle_on:" if current["trainable"] else ":material/toggle_off:",
        key="review-trainable",
        shortcut="T",
        width="stretch",
        on_click=switch,
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
            said=remember,
        )


def others(annotations: list[dict[str, Any]], target: Target) -> None:
    """What each reviewer says of the item, if anybody does."""
    authors = list(dict.fromkeys(row["author"] for row in annotations))
    said = []
    for author in authors:
        own = [row for row in annotations if row["author"] == author]
        row: Mapping[str, Any] | None = latest(own, target, AnnotationKind.QUALITY)
        if row is not None and row["value"] is not None:
            said.append(f"{kit.escape(author)} says <b>{kit.escape(row['value'])}</b>")
    if said:
        st.html(f'<div class="cs-said">{" · ".join(said)}</div>')


def quick_tags(target: Target, standing: list[str]) -> None:
    """The pool's most used tags under the digits."""
    counted = state.service().pool.stats.facets(View(), ["tags"])["tags"]
    names = [str(tag) for tag, _ in counted if tag][:QUICK_TAGS]
    if not names:
        return
    with st.container(horizontal=True, gap="xsmall", key="review-tags"):
        for place, name in enumerate(names):
            on = name in standing
            st.button(
                kit.verbatim(name),
                key=f"review-tag-{place}",
                shortcut=str(place + 1),
                type="primary" if on else "secondary",
                on_click=tag,
                args=(target, f"-{name}" if on else name),
            )


# Callbacks: they run before the fragment is drawn, so that one key press is one drawing.


def current_queue() -> Queue:
    """The queue of this session."""
    queue: Queue = st.session_state["review-queue"]
    return queue


def step(place: int, by: int) -> None:
    """J and K, once for each drawing: a press that comes again while the last one is being drawn is the same press."""
    queue = current_queue()
    if queue.place == place:
        queue.move(by)


def remember(action_uid: str, labelled: bool = False) -> None:
    """Keep what was said, to undo it; ``labelled``: it is the reviewer's first label of the item."""
    queue = current_queue()
    queue.said.append((action_uid, queue.place, labelled))


def rate(target: Target, value: str) -> None:
    """G, B and U: say it, and go on; once for each drawing."""
    queue = current_queue()
    if queue.uid != target.uid:
        return
    remember(say(target, [(AnnotationKind.QUALITY, value)], label=f"quality: {value}"), target.uid not in queue.done)
    queue.done.add(target.uid)
    queue.move(1)


def solve(target: Target, value: bool | None) -> None:
    """Y and X."""
    label = "correctness withdrawn" if value is None else "correct" if value else "wrong"
    remember(say(target, [(AnnotationKind.CORRECT, value)], label=label))


def switch(target: Target, value: bool) -> None:
    """T."""
    remember(say(target, [(AnnotationKind.TRAINABLE, value)], label=f"trainable: {'on' if value else 'off'}"))


def tag(target: Target, name: str) -> None:
    """A digit."""
    remember(say(target, [(AnnotationKind.TAG, name)], label=f"tag: {name}"))


def undo() -> None:
    """Z: take the last one back and stand where it was said."""
    queue = current_queue()
    action_uid, place, labelled = queue.said.pop()
    state.service().pool.labels.undo(action_uid)
    queue.place = place
    if labelled:
        queue.done.discard(queue.uid)
