"""A click in a list whose rerun was interrupted, so that the browser's next rerun brings the URL from before."""

from __future__ import annotations

from typing import Any

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest


def listing() -> None:
    import pyarrow as pa
    import streamlit as st

    from studio import state
    from studio.kit.data_tables import Sorting, TableSpec, selectable_table

    if (uid := state.query("trajectory")) is not None:
        st.write(f"open: {uid}")
        return
    selectable_table(
        pa.table({"trajectory_uid": ["a", "b"], "reward": [0.0, 1.0]}),
        TableSpec("trajectory_uid", ("trajectory_uid", "reward")),
        key="list",
        picked=set(),
        sorting=Sorting.from_query(("reward", "trajectory_uid"), "trajectory_uid asc"),
        opened=lambda uid: state.set_query(trajectory=uid),
    )
    st.write(f"order: {state.query('order')}")


@pytest.mark.parametrize(
    ("selected", "shown"),
    [
        ({"cells": [(1, "reward")]}, "open: b"),
        ({"cells": [(7, "reward")]}, "order: None"),
        ({"columns": ["reward"]}, "order: reward desc"),
        ({"columns": ["no pool column"]}, "order: None"),
        ({}, "order: None"),
    ],
)
def test_a_click_that_no_callback_saw(selected: dict[str, Any], shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [selected]

    def drawn(*_: Any, key: str, **__: Any) -> dict[str, Any]:
        # A list in another order has another key, and nothing selected.
        event = {"selection": {"rows": [], "columns": [], "cells": [], **(left.pop() if left else {})}}
        st.session_state[key] = event
        return event

    monkeypatch.setattr(st, "dataframe", drawn)
    app = AppTest.from_function(listing).run()
    assert not app.exception
    assert app.markdown[-1].value == shown
