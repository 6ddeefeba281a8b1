"""Streamlit's own request box and message queue, with what ``studio.reruns`` puts in their place."""

from __future__ import annotations

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue
from streamlit.runtime.scriptrunner_utils.script_requests import RerunData, ScriptRequests

from studio.reruns import keep_pages


@pytest.fixture(autouse=True, scope="module")
def kept() -> None:
    keep_pages()
    keep_pages()


def delta(path: list[int], fragment: str, text: str) -> ForwardMsg:
    """One element of a page."""
    message = ForwardMsg()
    message.metadata.delta_path[:] = path
    message.delta.fragment_id = fragment
    message.delta.new_element.text.body = text
    return message


@pytest.mark.parametrize("first", ["page", "part"])
def test_a_part_that_joins_a_waiting_page_leaves_it_the_page(first):
    requests = ScriptRequests()
    page = RerunData(page_script_hash="inspect", query_string="step=7")
    part = RerunData(page_script_hash="overview", fragment_id="strip", is_auto_rerun=True)
    for request in (page, part) if first == "page" else (part, page):
        assert requests.request_rerun(request)
    joined = requests.on_scriptrunner_ready().rerun_data
    assert (joined.page_script_hash, joined.query_string) == ("inspect", "step=7")
    assert not joined.fragment_id_queue and not joined.is_auto_rerun


def test_what_a_page_has_drawn_is_sent_before_what_its_part_draws_again():
    queue = ForwardMsgQueue()
    for path, fragment, text in (([0, 0], "", "head"), ([0, 1], "strip", "old"), ([0, 2], "", "table")):
        queue.enqueue(delta(path, fragment, text))
    queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=["strip"])
    queue.enqueue(delta([0, 1], "strip", "new"))
    assert [message.delta.new_element.text.body for message in queue.flush()] == ["head", "old", "table", "new"]


def test_a_page_that_starts_again_drops_what_was_not_sent():
    queue = ForwardMsgQueue()
    queue.enqueue(delta([0, 0], "", "head"))
    queue.clear(retain_lifecycle_msgs=True)
    assert queue.flush() == []
