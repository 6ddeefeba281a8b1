"""Tests of value formatting, and of filters to the URL and back."""

from __future__ import annotations

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.types import View
from studio import state
from studio.charts import rates
from studio.kit import format as fmt
from studio.widgets.agents import snippets

UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@pytest.mark.parametrize("module", [fmt, state, rates])
def test_examples_hold(module):
    failed, tried = doctest.testmod(module)
    assert tried and not failed


@given(st.integers(0, 10**14))
def test_compact_keeps_three_digits(value):
    number, _, unit = fmt.compact(value).partition(" ")
    assert float(number.replace(",", "")) * UNITS[unit] == pytest.approx(value, rel=0.006)
    assert len(number) <= 6


@given(st.floats(0, 1e7))
def test_seconds_reads_back(value):
    scale = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
    words = fmt.seconds(value).split()
    read = sum(float(number) * scale[unit] for number, unit in zip(words[::2], words[1::2], strict=True))
    assert read == pytest.approx(value, rel=0.06, abs=6e-5)


def test_unknown_is_never_zero():
    for show in (fmt.count, fmt.compact, fmt.bytes_text, fmt.percent, fmt.seconds, fmt.number):
        assert show(None) == fmt.DASH
        assert show(math.nan) == fmt.DASH
        assert fmt.DASH not in show(0)


@given(st.text())
def test_escaped_text_can_not_open_a_tag(text):
    assert not set("<>\"'") & set(fmt.escape(text))


TEXT = st.one_of(st.none(), st.text(), st.sampled_from(["null", "", "1", '"x"', "[1]", "true", "{}"]))
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "trajectory_uid": st.text(),
        "channel": st.lists(TEXT, min_size=2, max_size=4),
        "tags": st.dictionaries(st.sampled_from(["any", "all", "none"]), st.lists(st.text(), max_size=3)),
        "reward": st.one_of(
            st.integers(-5, 5),
            st.tuples(st.none() | st.floats(-1e6, 1e6), st.none() | st.floats(-1e6, 1e6)).map(list),
            st.dictionaries(st.sampled_from(["min", "max"]), st.integers()),
        ),
        "trainable": st.booleans(),
        "created_at": st.just(["2026-11-21T00:00:00Z", None]),
        "reward_state": st.sampled_from(["scored", "unscored"]),
        "text": st.text(min_size=1),
        "metadata": st.dictionaries(st.text(), st.none() | st.text(), min_size=1, max_size=2),
    },
)


@given(FILTERS, st.text())
def test_a_view_survives_the_url(filters, where):
    view = View(filters, where)
    assert state.view_from_query(state.view_to_query(view)) == view


def test_one_text_in_a_list_is_that_text():
    view = View({"channel": ["train"]})
    assert state.view_from_query(state.view_to_query(view)) == View({"channel": "train"})


def test_link_leaves_out_unknown():
    assert state.link("inspect", step="a b", trajectory=None) == "/inspect?step=a+b"
    assert state.link("overview") == "/"


def test_model_names_reach_the_engine():
    assert snippets.model_for("litellm:openai/gpt-x") == "openai/gpt-x"
    assert snippets.model_for("local") == "local"
