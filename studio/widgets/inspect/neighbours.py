"""The trajectories before and after one, in the list that the URL describes."""

from __future__ import annotations

from typing import NamedTuple

import streamlit as st

from studio import state
from studio.kit import data_tables
from studio.widgets.inspect.listing import TABLES


class Place(NamedTuple):
    """A trajectory in the list, and the page of the list that has it."""

    uid: str
    page: int


def neighbours(uid: str) -> tuple[Place | None, Place | None]:
    """The trajectories before and after ``uid`` by the URL's filters, order and page; None at the ends.

    Both are None when the page of the list does not have it, as after a link from elsewhere.
    """
    if state.query("level") in ("groups", "steps"):
        return None, None
    info, size = TABLES["trajectories"], data_tables.PAGE_SIZE
    order = data_tables.Sorting.from_query(info.orders, info.newest).order
    # One row more on either side of the page.
    first = max((data_tables.page_from_query() - 1) * size - 1, 0)
    rows = state.service().pool.trajectories.page(state.view_from_query(), order=order, limit=size + 2, offset=first)
    uids = rows["trajectory_uid"].to_pylist()
    if uid not in uids:
        return None, None
    at = uids.index(uid)

    def place(row: int) -> Place | None:
        return Place(uids[row], (first + row) // size + 1) if 0 <= row < len(uids) else None

    return place(at - 1), place(at + 1)


def neighbour_buttons(uid: str) -> None:
    """The buttons that open the previous and the next trajectory of the list, in the same tab."""
    before, after = neighbours(uid)
    for name, key, icon, one in (
        ("Previous trajectory", "trajectory-before", ":material/chevron_left:", before),
        ("Next trajectory", "trajectory-after", ":material/chevron_right:", after),
    ):
        st.button(
            name, icon=icon, key=key, type="tertiary", disabled=one is None, on_click=open_place, args=(one,), help=name
        )


def open_place(place: Place | None) -> None:
    """Open a trajectory of the list. A callback, so that the page is drawn once."""
    if place is not None:
        state.set_query(trajectory=place.uid, step=None, page=place.page if place.page > 1 else None)
