"""The next item is computed in a thread while the caller has the one before."""

from __future__ import annotations

import threading

import pytest

from core.batch.ahead import ahead


def of_thread(name: str) -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith(name)]


def test_the_next_item_is_computed_while_the_caller_has_this_one():
    taken, computed = threading.Event(), threading.Event()

    def items():
        yield 0
        # Only a caller that already has item 0 lets this go on.
        assert taken.wait(10)
        computed.set()
        yield 1

    ours = ahead(items())
    assert next(ours) == 0
    taken.set()
    assert computed.wait(10), "computed although the caller has not asked for it"
    assert list(ours) == [1]


def test_items_come_in_order_and_no_thread_is_left():
    assert list(ahead(range(100))) == list(range(100))
    assert list(ahead([])) == []
    # None is an item like others.
    assert list(ahead([None, None])) == [None, None]
    stopped = ahead(range(100))
    next(stopped)
    stopped.close()
    assert of_thread("read-ahead") == []


def test_at_most_one_item_waits():
    n_computed = 0

    def items():
        nonlocal n_computed
        for n in range(50):
            n_computed += 1
            yield n

    for n in ahead(items()):
        assert n_computed <= n + 2


def test_an_error_is_raised_where_its_item_would_be():
    def items():
        yield 0
        raise OSError("unreadable")

    ours = ahead(items())
    assert next(ours) == 0
    with pytest.raises(OSError, match="unreadable"):
        next(ours)
    assert of_thread("read-ahead") == []
