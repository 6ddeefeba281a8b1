"""Tables over the pool: rows are read page by page and selected by uid, never by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import streamlit as st

from core.errors import InvalidInput
from core.pool.query.columns import parse_order
from studio import state
from studio.kit.format import count, short_uid

PAGE_SIZE = 50
ROW_HEIGHT = 29
HEADER_HEIGHT = 36
ARROW_WIDTH = 16


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table's columns: the one that holds the uid, those shown without a choice, and the configuration of all.

    The first ones together fit beside the filters of a page that is 1280 pixels wide; ``column_choice`` offers the
    others.
    """

    uid: str
    columns: Sequence[str]
    config: Mapping[str, Any] = field(default_factory=dict)


def trajectory_table() -> TableSpec:
    """Trajectories, one per row."""
    c = st.column_config
    return TableSpec(
        "trajectory_uid",
        ("prompt_preview", "trajectory_uid", "n_steps", "reward", "findings", "started_at"),
        {
            "trajectory_uid": c.TextColumn("Trajectory", width=140),
            "prompt_uid": c.TextColumn("Prompt group", width=120),
            "prompt_preview": c.TextColumn("Task", width=190),
            "agent": c.TextColumn("Agent", width=92),
            "run": c.TextColumn("Run", width=110),
            "model": c.TextColumn("Model", width=90),
            "channel": c.TextColumn("Channel", width=70),
            "n_steps": c.NumberColumn("Steps", width=52, format="localized"),
            "tokens": c.NumberColumn(
                "Unique tokens", width=96, format="localized",
                help="Each stored token counted once; a batch counts a prompt again in every step that has it",
            ),
            "reward": c.NumberColumn("Reward", width=68, format="%.3g", help="Empty means unscored, which is not 0"),
            "quality": c.TextColumn("Quality", width=66),
            "complete": c.CheckboxColumn("Complete", width=72),
            "policy": c.TextColumn("Policy", width=62, help="Policy versions, lowest to highest"),
            "started_at": c.DatetimeColumn("Started", width=114, format="MMM D, HH:mm:ss"),
            "tags": c.ListColumn("Tags", width=90),
            "outcome": c.TextColumn("Outcome", width=80),
            "findings": c.TextColumn("Findings", width=122, help="Findings of automatic checks"),
            "correct": c.CheckboxColumn("Correct", width=66, help="Label set by people; empty is unlabelled"),
            "difficulty": c.NumberColumn("Difficulty", width=70, format="%.2f", help="1 - the group's success rate"),
            "trainable": c.CheckboxColumn("Trainable", width=70),
            "source": c.TextColumn("Source", width=76),
            "ended_at": c.DatetimeColumn("Ended", width=128, format="MMM D, HH:mm:ss"),
            "n_notes": c.NumberColumn("Notes", width=54),
        },
    )  # fmt: skip


def group_table() -> TableSpec:
    """Prompt groups, one per row."""
    c = st.column_config
    return TableSpec(
        "prompt_uid",
        ("prompt_preview", "prompt_uid", "n_trajectories", "reward_mean", "reward_std", "success_rate",
         "zero_variance"),
        {
            "prompt_uid": c.TextColumn("Prompt group", width=130),
            "prompt_preview": c.TextColumn("Task", width=208),
            "n_trajectories": c.NumberColumn("Trajectories", width=86),
            "n_complete": c.NumberColumn("Complete", width=70),
            "n_scored": c.NumberColumn("Scored", width=60),
            "n_steps": c.NumberColumn("Steps", width=56),
            "n_tokens": c.NumberColumn("Tokens", width=72, format="localized"),
            "reward_mean": c.NumberColumn("Mean", width=58, format="%.3g"),
            "reward_std": c.NumberColumn("Std", width=58, format="%.3g", help="Sample standard deviation, as in GRPO"),
            "reward_min": c.NumberColumn("Min", width=52, format="%.3g"),
            "reward_max": c.NumberColumn("Max", width=52, format="%.3g"),
            "success_rate": c.ProgressColumn("Success", width=92, format="percent", min_value=0, max_value=1),
            "zero_variance": c.CheckboxColumn("No variance", width=86, help="All rewards are equal"),
        },
    )  # fmt: skip


def run_table() -> TableSpec:
    """Runs, one per row."""
    c = st.column_config
    return TableSpec(
        "run",
        ("run", "n_trajectories", "reward_mean", "success_rate", "n_steps_mean", "n_tokens_mean", "error_rate",
         "started_at"),
        {
            "run": c.TextColumn("Run", width=170),
            "n_trajectories": c.NumberColumn("Trajectories", width=84, format="localized"),
            "n_groups": c.NumberColumn("Groups", width=62, format="localized", help="Prompt groups"),
            "n_scored": c.NumberColumn("Scored", width=60, format="localized"),
            "reward_mean": c.NumberColumn("Reward", width=62, format="%.3g", help="Mean of the scored trajectories"),
            "success_rate": c.ProgressColumn(
                "Success", width=92, format="percent", min_value=0, max_value=1, help="Share with a reward above 0.5"
            ),
            "n_steps_mean": c.NumberColumn("Length", width=62, format="%.3g", help="Steps of a trajectory, mean"),
            "n_tokens_mean": c.NumberColumn(
                "Tokens", width=72, format="%.0f", help="Prompt and response tokens of a trajectory's calls, mean"
            ),
            "error_rate": c.NumberColumn(
                "Errors", width=62, format="percent", help="Share of the calls that failed or were aborted"
            ),
            "policy": c.TextColumn("Policy", width=62, help="Policy versions, lowest to highest"),
            "agents": c.ListColumn("Agents", width=120),
            "models": c.ListColumn("Models", width=120),
            "n_steps": c.NumberColumn("Steps", width=62, format="localized"),
            "started_at": c.DatetimeColumn("Started", width=114, format="MMM D, HH:mm:ss"),
            "ended_at": c.DatetimeColumn("Ended", width=128, format="MMM D, HH:mm:ss"),
        },
    )  # fmt: skip


def step_table() -> TableSpec:
    """Steps, one per row."""
    c = st.column_config
    return TableSpec(
        "step_uid",
        ("trajectory_uid", "step_index", "preview", "tool_names", "reward", "findings"),
        {
            "step_uid": c.TextColumn("Step uid", width=164),
            "trajectory_uid": c.TextColumn("Trajectory", width=140),
            "step_index": c.NumberColumn("Step", width=48, help="Position in the trajectory, from 0"),
            "preview": c.TextColumn("Answer", width=190),
            "tool_names": c.ListColumn("Tools", width=96),
            "n_prompt_tokens": c.NumberColumn("Prompt", width=64, format="localized"),
            "n_response_tokens": c.NumberColumn("Response", width=74, format="localized"),
            "reward": c.NumberColumn("Reward", width=62, format="%.3g"),
            "quality": c.TextColumn("Quality", width=64),
            "trainable": c.CheckboxColumn("Trainable", width=70),
            "transition": c.TextColumn("Transition", width=84),
            "call_kind": c.TextColumn("Kind", width=68),
            "status": c.TextColumn("Status", width=64),
            "token_source": c.TextColumn("Token source", width=88),
            "finish_reason": c.TextColumn("Finish", width=76),
            "latency_s": c.NumberColumn("Latency", width=68, format="%.2f s"),
            "created_at": c.DatetimeColumn("Time", width=128, format="MMM D, HH:mm:ss"),
            "findings": c.TextColumn("Findings", width=146, help="Findings of automatic checks"),
            "correct": c.CheckboxColumn("Correct", width=66, help="Label set by people; empty is unlabelled"),
            "staleness": c.NumberColumn("Staleness", width=70, help="Current policy version minus the step's"),
            "difficulty": c.NumberColumn("Difficulty", width=70, format="%.2f", help="1 - the group's success rate"),
            "policy_version": c.NumberColumn("Policy", width=56),
            "agent": c.TextColumn("Agent", width=92),
            "run": c.TextColumn("Run", width=110),
            "model": c.TextColumn("Model", width=90),
            "engine": c.TextColumn("Engine", width=80),
            "prompt_uid": c.TextColumn("Prompt group", width=120),
            "channel": c.TextColumn("Channel", width=70),
            "source": c.TextColumn("Source", width=76),
            "tags": c.ListColumn("Tags", width=90),
            "n_notes": c.NumberColumn("Notes", width=54),
            "trajectory_reward": c.NumberColumn("Trajectory reward", width=126, format="%.3g"),
            "n_shared_tokens": c.NumberColumn("Shared tokens", width=96, format="localized"),
            "mismatch": c.TextColumn("Mismatch", width=110),
            "error": c.TextColumn("Error", width=140),
        },
    )  # fmt: skip


def to_frame(rows: pa.Table) -> Any:
    """Rows as a data frame, with two derived columns: stored tokens and the range of policy versions."""
    frame = rows.to_pandas()
    if "n_unique_tokens" in frame:
        frame["tokens"] = frame["n_unique_tokens"]
    if "policy_version_min" in frame:
        frame["policy"] = [version_span(a, b) for a, b in zip(*_versions(rows), strict=True)]
    return frame


UID_CHARS = {"trajectory_uid": 19, "step_uid": 21, "prompt_uid": 16}
"""Columns of uids -> characters that fit their width."""


def fitted(frame: Any) -> Any:
    """The frame with texts that fit their columns: long uids with an ellipsis, the first finding and a count.

    A cell of the table is cut without a mark, so that a cut uid or list would look complete.
    """
    # A missing uid is NaN in a data frame, and stays so.
    shown = {
        name: [short_uid(uid, n) if isinstance(uid, str) else None for uid in frame[name]]
        for name, n in UID_CHARS.items()
        if name in frame
    }
    for name in ("prompt_preview", "preview"):
        if name in frame:
            shown[name] = [cut_text(text) if isinstance(text, str) else None for text in frame[name]]
    if "findings" in frame:
        shown["findings"] = [first_and_more(names) for names in frame["findings"]]
    return frame.assign(**shown)


REWARDS = ("reward", "trajectory_reward")


def with_reward_bars(config: Mapping[str, Any], frame: Any) -> dict[str, Any]:
    """The columns' configuration with rewards as bars, red in the lower half of the scale and green in the upper one.

    The scale begins at 0 and reaches at least 1; where a reward is negative, it is symmetric about 0.
    """
    changed = dict(config)
    for name in REWARDS:
        known = frame[name].dropna() if name in config and name in frame else ()
        if len(known) == 0:
            continue
        low, high = float(min(known)), max(float(max(known)), 1.0)
        high = max(high, -low)
        changed[name] = st.column_config.ProgressColumn(
            config[name]["label"],
            width=max(100, config[name]["width"]),
            help=config[name].get("help"),
            format="%.3g",
            min_value=-high if low < 0 else 0.0,
            max_value=high,
            color="auto",
        )
    return changed


PREVIEW_CHARS = 30
"""Characters that fit a column of previews."""


def cut_text(text: str, n: int = PREVIEW_CHARS) -> str:
    """A text of at most ``n`` characters, with an ellipsis where it was cut; the default fits a column of previews.

    >>> cut_text("short"), len(cut_text("x" * 100))
    ('short', 30)
    """
    return text if len(text) <= n else f"{text[: n - 1].rstrip()}…"


def first_and_more(names: Sequence[str] | None) -> str | None:
    """The first name and how many more there are; None for none.

    >>> first_and_more(["tool_error", "looping"]), first_and_more(["drift"]), first_and_more([])
    ('tool error +1', 'drift', None)
    """
    if names is None or len(names) == 0:
        return None
    first = str(names[0]).replace("_", " ")
    return first if len(names) == 1 else f"{first} +{len(names) - 1}"


def _versions(rows: pa.Table) -> tuple[list[int | None], list[int | None]]:
    return rows["policy_version_min"].to_pylist(), rows["policy_version_max"].to_pylist()


def version_span(low: int | None, high: int | None) -> str | None:
    """A range of policy versions as text: one number when both ends are equal, None when unknown.

    >>> span(3, 3), span(3, 5), span(None, None)
    ('3', '3–5', None)
    """
    if low is None or high is None:
        return None
    return str(low) if low == high else f"{low}–{high}"


def page_from_query() -> int:
    """The page number in the URL, from 1."""
    requested = state.query("page", "1") or "1"
    return max(int(requested), 1) if requested.isdigit() else 1


SINGULAR = {
    "rows": "row",
    "steps": "step",
    "trajectories": "trajectory",
    "groups": "group",
    "prompt groups": "prompt group",
    "matches": "match",
}


def pagination(n_rows: int, *, key: str, size: int = PAGE_SIZE, noun: str = "rows") -> int:
    """Draw the pagination bar; return the offset of the first row. The page number is kept in the URL."""
    n_pages = max(1, -(-n_rows // size))
    page = min(page_from_query(), n_pages)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        first = (page - 1) * size
        last = min(n_rows, first + size)
        if n_rows == 1:
            noun = SINGULAR.get(noun, noun)
        st.caption(f"{count(first + 1 if n_rows else 0)}–{count(last)} of {count(n_rows)} {noun}")
        if n_pages > 1:
            pages = f"{key}-pages"
            st.session_state[pages] = page
            st.pagination(n_pages, key=pages, width=320, on_change=_turn, args=(pages,))
    return (page - 1) * size


def _turn(key: str) -> None:
    # A callback runs before the page is drawn, so one click draws it once.
    chosen = st.session_state[key]
    state.set_query(page=chosen if chosen > 1 else None)


@dataclass(frozen=True, slots=True)
class Sorting:
    """The order of a table's whole result, which a click on a column's heading changes.

    Attributes:
        order: ``"column desc"`` or ``"column asc"``, by the pool's names.
        columns: the pool's names that can be sorted by.
        newest: the order without a choice.
        param: the URL parameter that holds the order.
    """

    order: str
    columns: Sequence[str]
    newest: str
    param: str = "order"

    @classmethod
    def from_query(cls, columns: Sequence[str], newest: str, param: str = "order") -> Sorting:
        """The order in the URL; the default when it does not fit these columns."""
        requested = state.query(param)
        if requested is not None:
            try:
                parsed = parse_order(requested, {name: name for name in columns})
            except InvalidInput:
                parsed = []
            if parsed:
                return cls(requested, columns, newest, param)
        return cls(newest, columns, newest, param)

    @property
    def first(self) -> tuple[str, bool]:
        """The first column and whether it is descending."""
        name, _, descending = parse_order(self.order, {name: name for name in self.columns})[0]
        return name, descending

    def choose(self, name: str, *, descending: bool) -> None:
        """Write an order to the URL; the list begins at its first page again."""
        wanted = f"{name} {'desc' if descending else 'asc'}"
        state.set_query(**{self.param: None if wanted == self.newest else wanted, "page": None})

    def clicked(self, column: str) -> None:
        """A click on a heading: highest first, at the second click lowest first."""
        name = POOL_NAMES.get(column, column)
        if name in self.columns:
            self.choose(name, descending=self.first != (name, True))

    def marked(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The columns' configuration with an arrow in the heading of the sorted one."""
        name, descending = self.first
        shown = {POOL_NAMES.get(column, column): column for column in config}.get(name)
        if shown is None:
            return dict(config)
        label = f"{config[shown].get('label') or shown} {'↓' if descending else '↑'}"
        width = config[shown].get("width")
        room = {"width": width + ARROW_WIDTH} if isinstance(width, int) else {}
        return {**config, shown: {**config[shown], "label": label, **room}}


POOL_NAMES = {"tokens": "n_unique_tokens", "policy": "policy_version_min"}
"""Columns that ``to_frame`` derives -> what the pool sorts by for them."""


def selectable_table(
    rows: pa.Table,
    spec: TableSpec,
    *,
    key: str,
    picked: set[str],
    height: int = 520,
    sorting: Sorting,
    opened: Callable[[str], None] | None = None,
) -> set[str]:
    """Draw a table with check boxes; return the selected uids of this page and of all other pages.

    ``opened`` is called with the uid of a clicked row before the page is drawn. A click on a heading sorts the whole
    result: Streamlit's own sorting, which would sort this page's rows only, is off while columns can be selected.

    ``key`` must change with page, filter and order: Streamlit remembers selected positions, not rows.
    """
    frame = to_frame(rows)
    uids = [str(uid) for uid in frame[spec.uid]]
    mount = f"{key}-mount"
    if mount not in st.session_state or key not in st.session_state:
        # The table is mounted for the first time: its check boxes start with the current selection.
        st.session_state[mount] = [place for place, uid in enumerate(uids) if uid in picked]
    event = st.dataframe(
        fitted(frame),
        hide_index=True,
        column_order=spec.columns,
        column_config=sorting.marked(with_reward_bars(spec.config, frame)),
        on_select=lambda: _clicked(key, uids, sorting, opened),
        selection_mode=["multi-row", "single-column"] + ([] if opened is None else ["single-cell"]),
        selection_default={"selection": {"rows": st.session_state[mount]}},
        placeholder="",
        row_height=ROW_HEIGHT,
        height=min(height, HEADER_HEIGHT + ROW_HEIGHT * max(len(frame), 1)),
        key=key,
    )
    selected = event["selection"]
    if selected.get("columns") or selected.get("cells"):
        # A click leaves this list, or orders it under another key. It is drawn with the click when another rerun
        # interrupted the one that handled it: that rerun brings the URL from before, and no callback.
        before = st.query_params.to_dict()
        _clicked(key, uids, sorting, opened)
        if st.query_params.to_dict() != before:
            st.rerun()
    chosen = {uids[place] for place in selected["rows"] if place < len(uids)}
    return (picked - set(uids)) | chosen


def _clicked(key: str, uids: Sequence[str], sorting: Sorting, opened: Callable[[str], None] | None) -> None:
    selected = st.session_state[key]["selection"]
    columns, cells = selected.get("columns") or [], selected.get("cells") or []
    if columns:
        sorting.clicked(columns[0])
    elif cells and opened is not None and 0 <= cells[0][0] < len(uids):
        opened(uids[cells[0][0]])
