"""Tests of message cards: no text is lost, shared history is folded, calls are shown with their results."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from studio.widgets.steps.messages import cards, delta, headline, parts_of, reasoning_of
from tests.effort import settings


def call(uid: str, name: str, arguments: str = "{}") -> dict:
    return {"id": uid, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_result(uid: str, text: str) -> dict:
    return {"role": "tool", "tool_call_id": uid, "content": text}


TURN = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "", "tool_calls": [call("a", "ls"), call("b", "cat", '{"path": "x"}')]},
    tool_result("a", "x y"),
    tool_result("b", "content of x"),
]


def text_of(part: dict) -> str:
    return part.get("text", "")


def texts(entries: list[dict]) -> list[str]:
    """Every text that the entries show, folded ones included."""
    collected = []
    for entry in entries:
        collected += texts(entry.get("entries", []))
        collected += [text_of(part) for part in entry.get("parts", [])]
        collected += [entry.get("reasoning", "")]
        for made in entry.get("calls", []):
            collected += [made["arguments"], *(text_of(part) for part in (made["result"] or {"parts": []})["parts"])]
    return collected


def test_results_stand_beside_their_calls():
    shown = cards(TURN)
    assert [entry["role"] for entry in shown] == ["user", "assistant"]
    assert [(c["name"], c["result"]["parts"][0]["text"]) for c in shown[1]["calls"]] == [
        ("ls", "x y"),
        ("cat", "content of x"),
    ]
    assert json.loads(shown[1]["calls"][1]["arguments"]) == {"path": "x"}


def test_new_results_name_the_shared_call_they_answer():
    step = {"step_uid": "s", "messages": TURN, "n_shared_messages": 2, "transition": "extends"}
    folded, first, second = delta(step)
    assert (folded["kind"], folded["n"]) == ("folded", 2)
    assert [first["calls"][0]["name"], second["calls"][0]["name"]] == ["ls", "cat"]


def test_the_answer_finds_its_result_in_the_next_step_even_with_other_ids():
    answer = {"role": "assistant", "content": "", "tool_calls": [call("call_0", "ls")]}
    step = {"step_uid": "s0", "messages": TURN[:1], "n_shared_messages": 0, "response_message": answer}
    follow = {
        "step_uid": "s1",
        "step_index": 1,
        "parent_step_uid": "s0",
        "messages": [TURN[0], answer, tool_result("call0", "found")],
    }
    made = delta(step, later=[follow])[-1]["calls"][0]
    assert made["result"]["parts"][0]["text"] == "found"
    assert made["result"]["where"] == "in step 1"
    assert delta(step)[-1]["calls"][0]["result"] is None


def test_without_linking_the_shared_messages_are_compared():
    parent = {"step_index": 0, "messages": TURN[:1], "response_message": TURN[1]}
    step = {"step_uid": "s1", "messages": TURN}
    assert delta(step, parent=parent)[0]["n"] == 2
    changed = {"step_uid": "s1", "messages": [{"role": "user", "content": "other"}, *TURN[1:]]}
    assert delta(changed, parent=parent)[0]["kind"] == "message"


def test_content_blocks_of_the_messages_dialect():
    blocks = [
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hmm"},
            {"type": "text", "text": "look"},
            {"type": "tool_use", "id": "t", "name": "ls", "input": {"path": "."}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "a b"}]},
    ]  # fmt: skip
    (shown,) = cards(blocks)
    assert shown["reasoning"] == "hmm"
    assert shown["parts"] == [{"kind": "text", "text": "look"}]
    assert shown["calls"][0]["result"]["parts"] == [{"kind": "text", "text": "a b"}]


def test_a_leading_think_is_reasoning_and_not_content():
    message = {"role": "assistant", "content": "<think>\nplan\n</think>\nanswer"}
    assert reasoning_of(message) == "plan"
    assert parts_of(message) == [{"kind": "text", "text": "answer"}]


def test_an_unclosed_think_is_all_reasoning_yet_the_text_stays_in_sight():
    message = {"role": "assistant", "content": "<think>cut off"}
    assert "cut off" in reasoning_of(message) + "".join(part["text"] for part in parts_of(message))


def test_remote_images_are_named_and_embedded_ones_shown():
    remote = {"type": "image_url", "image_url": {"url": "http://elsewhere/x.png"}}
    inline = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    shown = parts_of({"content": [remote, inline]})
    assert shown[0]["src"] is None
    assert "http://elsewhere/x.png" in shown[0]["alt"]
    assert shown[1]["src"].startswith("data:image/png")


def test_malformed_arguments_are_shown_as_they_are():
    (shown,) = cards([{"role": "assistant", "tool_calls": [call("a", "ls", '{"path": ')]}])
    assert shown["calls"][0]["arguments"] == '{"path": '
    assert shown["calls"][0]["problem"] == "arguments are not JSON"


def test_a_step_in_a_line():
    assert headline({"tool_names": ["ls", "cat"]}) == "ls() · cat()"
    assert headline({"preview": "two\n lines"}) == "two lines"
    assert headline({"error": "timeout"}) == "timeout"


words = st.text(st.characters(codec="ascii", exclude_characters="<>"), min_size=1, max_size=12).map("w-{}".format)
plain = st.builds(
    lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "user", "assistant"]), words
)


@st.composite
def conversations(draw) -> list[dict]:
    """Messages with calls that are answered, unanswered, or answered without a call."""
    messages: list[dict] = draw(st.lists(plain, max_size=4))
    for index in range(draw(st.integers(0, 3))):
        uids = [f"c{index}-{n}" for n in range(draw(st.integers(1, 3)))]
        messages.append({"role": "assistant", "content": draw(words), "tool_calls": [call(u, "run") for u in uids]})
        answered = draw(st.lists(st.sampled_from([*uids, "nobody"]), unique=True))
        messages += [tool_result(uid, draw(words)) for uid in answered]
        messages += draw(st.lists(plain, max_size=2))
    return messages


@settings(deadline=None)
@given(conversations(), st.data())
def test_no_text_is_lost_wherever_the_history_is_folded(messages, data):
    n_shared = data.draw(st.integers(0, len(messages)))
    step = {"step_uid": "s", "messages": messages, "n_shared_messages": n_shared}
    shown = texts(delta(step))
    for message in messages:
        assert message["content"] in shown


def test_an_answer_sent_back_in_other_form_is_still_history():
    answer = {"role": "assistant", "content": None, "tool_calls": [call("call_0", "ls", '{"path":"."}')]}
    sent_back = {"role": "assistant", "content": "", "tool_calls": [call("call0", "ls", '{"path": "."}')]}
    parent = {"step_index": 0, "messages": TURN[:1], "response_message": answer}
    step = {"step_uid": "s1", "messages": [TURN[0], sent_back, tool_result("call0", "x")], "n_shared_messages": 1}
    folded, result = delta(step, parent=parent)
    assert folded["n"] == 2
    assert result["calls"][0]["name"] == "ls"
    other = {**step, "messages": [TURN[0], {"role": "assistant", "content": "no"}, tool_result("call0", "x")]}
    assert delta(other, parent=parent)[0]["n"] == 1


def test_a_long_history_has_its_latest_messages_and_says_where_the_others_are():
    messages = [{"role": "user", "content": "task"}]
    for n in range(1000):
        messages += [
            {"role": "assistant", "content": f"turn {n}", "tool_calls": [call(f"c{n}", "ls")]},
            tool_result(f"c{n}", f"r{n}"),
        ]
    step = {
        "messages": messages,
        "n_shared_messages": 2000,
        "response_message": {"role": "assistant", "content": "end"},
    }
    folded, *rest = delta(step, parent={"step_index": 998, "messages": []})
    assert folded["n"] == 2000
    assert folded["entries"][0] == {"kind": "mark", "text": "1,600 earlier messages are on the tab Transcript"}
    shown = texts(folded["entries"] + rest)
    assert [text for text in shown if text.startswith("turn")] == [f"turn {n}" for n in range(800, 1000)]
    # The first shown result answers a call of before.
    assert folded["entries"][1]["role"] == "tool" and folded["entries"][1]["calls"][0]["name"] == "ls"
    assert [text for text in shown if text.startswith("r") and text[1:].isdigit()] == [
        f"r{n}" for n in range(799, 1000)
    ]
