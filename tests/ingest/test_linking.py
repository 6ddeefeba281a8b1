"""How a call relates to the ones before it: one small conversation per name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.linking import (
    Link,
    MessageHasher,
    TokenForest,
    TrajectoryLinks,
    normal_message,
    shared_prefix,
    task_prompt_uid,
)
from core.linking.calls import fingerprint_answer

SYSTEM = {"role": "system", "content": "be good"}
TOOLS = [{"type": "function"}]
DAYS = ["2026-01-02", "2026-11-22 10:15:00", "Sunday, November 22, 2026", "11/22/2026", "22 Nov 2026"]


def u(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def a(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


class Talk:
    """Places calls one after another."""

    def __init__(self) -> None:
        self.links = TrajectoryLinks()
        self._hasher = MessageHasher()
        self._n = 0

    def say(
        self,
        messages: list[dict[str, Any]] | None,
        answer: str | None,
        *,
        tools: list[Any] | None = TOOLS,
        prompt: list[int] | None = None,
        response: list[int] | None = None,
        status: str = "ok",
        source: str = "blackbox",
        sibling: bool = False,
        retry_count: int = 0,
    ) -> Link:
        call = self._hasher.call(
            step_uid=f"s{self._n}",
            prompt=None if prompt is None else np.array(prompt, np.int32),
            response=None if response is None else np.array(response, np.int32),
            messages=messages,
            response_message=None if answer is None else a(answer),
            tools=tools,
            source=source,
            status=status,
            call_kind="main",
            retry_count=retry_count,
        )
        self._n += 1
        return self.links.place(call, sibling=sibling)


@pytest.fixture
def talk() -> Talk:
    made = Talk()
    first = made.say([SYSTEM, u("q")], "one")
    assert (first.transition, first.call_kind, first.parent_step_uid, first.step_index) == (None, "main", None, 0)
    second = made.say([SYSTEM, u("q"), a("one"), u("w")], "two")
    assert (second.transition, second.parent_step_uid, second.n_shared_messages) == ("extends", "s0", 3)
    return made


def test_realigned_when_the_client_rewrote_the_answer(talk: Talk) -> None:
    link = talk.say([SYSTEM, u("q"), a("one"), u("w"), a("TWO, cleaned"), u("e")], "three")
    assert (link.transition, link.call_kind, link.parent_step_uid) == ("realigned", "main", "s1")


def test_realigned_when_only_the_tokens_came_back_different() -> None:
    talk = Talk()
    talk.say([u("q")], "one", prompt=[1, 2], response=[3, 4])
    link = talk.say([u("q"), a("one"), u("w")], "two", prompt=[1, 2, 3, 9, 5], response=[6])
    assert (link.transition, link.n_shared_tokens, link.n_shared_messages) == ("realigned", 3, 2)


def test_tail_replaced(talk: Talk) -> None:
    link = talk.say([SYSTEM, u("q"), a("one"), u("W!"), u("e")], "three")
    assert (link.transition, link.call_kind) == ("forked", "main")  # s1 goes on from s0 already
    talk = Talk()
    talk.say([SYSTEM, u("q"), u("context 1")], "one")
    link = talk.say([SYSTEM, u("q"), a("one"), u("context 2")], "two")
    assert (link.transition, link.parent_step_uid, link.n_shared_messages) == ("tail_replaced", "s0", 2)


def test_forked_when_another_step_continues_the_parent(talk: Talk) -> None:
    link = talk.say([SYSTEM, u("q"), a("one"), u("other")], "three")
    assert (link.transition, link.call_kind, link.n_shared_messages) == ("forked", "main", 3)


def test_compacted_when_the_history_gave_way_to_less(talk: Talk) -> None:
    talk.say([SYSTEM, u("q"), a("one"), u("w"), a("two"), u("e")], "three")
    link = talk.say([SYSTEM, u("summary of all")], "four")
    assert (link.transition, link.call_kind) == ("compacted", "main")
    after = talk.say([SYSTEM, u("summary of all"), a("four"), u("r")], "five")
    assert (after.transition, after.parent_step_uid) == ("extends", "s3")


def test_the_same_prompt_again_is_one_more_sample(talk: Talk) -> None:
    link = talk.say([SYSTEM, u("q"), a("one"), u("w")], "two again")
    assert (link.transition, link.call_kind) == ("forked", "main")
    assert talk.say([SYSTEM, u("q"), a("one"), u("w")], "and", sibling=True).call_kind == "main"


def test_a_second_try_after_a_failure_is_no_retry() -> None:
    talk = Talk()
    talk.say([u("q")], None, status="error")
    link = talk.say([u("q")], "one")
    assert (link.transition, link.call_kind, link.step_index) == (None, "main", 1)


def test_a_retry_is_what_the_sdk_calls_so_unless_it_stands_for_a_call_that_failed(talk: Talk) -> None:
    same = [SYSTEM, u("q"), a("one"), u("w")]
    assert talk.say(same, "again", retry_count=1).call_kind == "retry"
    talk.say(same, None, status="error")
    assert talk.say(same, "in its place", retry_count=1).call_kind == "main"
    assert talk.say(same, "and again", retry_count=2).call_kind == "retry"
    talk.say(same, "nobody heard it", status="aborted")
    assert talk.say(same, "in its place").call_kind == "main"


def test_a_tool_less_harness_has_side_calls() -> None:
    """As aider writes its commit messages; a pipeline's next role is no side call."""
    talk = Talk()
    talk.say([SYSTEM, u("add a flag")], "done", tools=None)
    commit = {"role": "system", "content": "You are an expert at writing Git commit messages. Reply with one line."}
    assert talk.say([commit, u("diff --git ...")], "feat: flag", tools=None).call_kind == "auxiliary"
    critic = {"role": "system", "content": "You are a critic."}
    assert talk.say([critic, u("done")], "fine", tools=None).call_kind == "main"


def test_a_subagent_that_shares_the_primer_is_one() -> None:
    """Qwen Code's memory agent is given the same context and the same primer as the main one."""
    talk = Talk()
    primer = [u("This is the context."), a("Got it. Thanks for the context!")]
    talk.say([SYSTEM, *primer, u("fix it")], "on it")
    own = {"role": "system", "content": "You remember things."}
    link = talk.say([own, *primer, u("what is worth remembering?")], "nothing")
    assert (link.transition, link.call_kind) == ("forked", "subagent")


def test_a_subagent_that_reads_the_talk_does_not_go_on_with_it(talk: Talk) -> None:
    """Qwen Code's memory: its own system prompt behind each answer, over the whole talk."""
    role = "You are now acting as the managed memory extraction subagent for an AI coding assistant.\n\nThe recent"
    own = {"role": "system", "content": role}
    past = [u("q"), a("one"), u("w"), a("two")]
    first = talk.say([own, *past, u("Write down what lasts.")], "look")
    assert (first.transition, first.call_kind) == ("forked", "subagent")
    second = talk.say([own, *past, u("Write down what lasts."), a("look"), u("found")], "nothing")
    assert (second.transition, second.call_kind) == ("extends", "subagent")
    main = talk.say([SYSTEM, *past, u("and now?")], "three")
    assert (main.transition, main.call_kind, main.parent_step_uid) == ("extends", "main", "s1")
    other = {"role": "system", "content": "You are an agent that may start a subagent. Plan first."}
    assert talk.say([other, *past, u("and now?"), a("three"), u("go")], "x").call_kind == "main"


def test_subagent_has_its_own_system_and_tools(talk: Talk) -> None:
    own = {"role": "system", "content": "you are a helper"}
    link = talk.say([own, u("do a part")], "part")
    assert (link.transition, link.call_kind, link.parent_step_uid) == ("forked", "subagent", None)
    assert talk.say([own, u("do a part"), a("part"), u("more")], "x").call_kind == "subagent"
    back = talk.say([SYSTEM, u("q"), a("one"), u("w"), a("two"), u("part done")], "y")
    assert (back.transition, back.call_kind, back.parent_step_uid) == ("extends", "main", "s1")


def test_auxiliary_has_no_tools_and_no_part_in_the_talk(talk: Talk) -> None:
    link = talk.say([{"role": "system", "content": "title please"}, u("q")], "Title", tools=None)
    assert link.call_kind == "auxiliary"
    end = talk.say([SYSTEM, u("q"), a("one"), u("w"), a("two"), u("finish")], "done", tools=None)
    assert (end.transition, end.call_kind) == ("extends", "main")


def test_a_system_prompt_that_tells_the_time_changes_nothing() -> None:
    talk = Talk()
    talk.say([{"role": "system", "content": "it is 10:00"}, u("q")], "one")
    link = talk.say([{"role": "system", "content": "it is 10:01"}, u("q"), a("one"), u("w")], "two")
    assert link.transition == "extends"


def test_tokens_alone_tell_when_there_are_no_messages() -> None:
    talk = Talk()

    def say(prompt: list[int], response: list[int]) -> tuple[str | None, int]:
        link = talk.say(None, None, prompt=prompt, response=response, source="whitebox")
        return link.transition, link.n_shared_tokens

    assert say([1, 2, 3, 4, 5], [6, 7]) == (None, 0)
    assert say([1, 2, 3, 4, 5, 6, 7, 8], [9]) == ("extends", 7)
    assert say([1, 2, 3, 4, 5, 6, 7, 8], [10]) == ("forked", 8)
    assert say([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9], [1]) == ("extends", 9)
    assert say([1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 3, 3], [4, 4]) == ("realigned", 11)
    assert say([1, 2, 3], [4]) == ("forked", 3)
    assert say([8], []) == ("forked", 0)


def test_what_agents_rewrite_does_not_count() -> None:
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": 2}'}}
    back = {"id": "call0", "type": "function", "function": {"name": "f", "arguments": '{"b":2,"a":1}'}}
    assert normal_message({"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"}) == (
        normal_message({"role": "assistant", "content": "", "tool_calls": [back]})
    )
    empty = [{"function": {"name": "f", "arguments": arguments}} for arguments in ("", "{}", " ", None, {})]
    assert len({repr(normal_message({"role": "assistant", "tool_calls": [one]})) for one in empty}) == 1
    marked = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
    assert normal_message({"role": "user", "content": marked}) == normal_message(u("hi\n"))
    assert normal_message(u("hi")) != normal_message(u("ho"))
    assert task_prompt_uid([SYSTEM, u("x")], None) == task_prompt_uid([SYSTEM, u("x "), a("y"), u("z")], None, 2)
    assert task_prompt_uid([SYSTEM, u("x")], None) != task_prompt_uid([SYSTEM, u("x"), a("y"), u("z")], None)
    assert task_prompt_uid([SYSTEM, u("x")], None) != task_prompt_uid([u("x")], None)
    dated = [{"role": "system", "content": f"Today's date is {day}. Due 1999-01-01."} for day in DAYS]
    assert len({task_prompt_uid([system, u("x")], None) for system in dated}) == 1
    assert task_prompt_uid([u(f"Today is {DAYS[0]}")], None) != task_prompt_uid([u(f"Today is {DAYS[1]}")], None)
    assert task_prompt_uid([SYSTEM, u("x")], None) != task_prompt_uid([SYSTEM, u("y")], None)
    assert task_prompt_uid(None, None) is None


@given(st.data())
def test_sub_agents_that_work_at_once_are_not_mixed_up(data: st.DataObject) -> None:
    """A main agent and its sub-agents call under one identity, in any order: each goes on from its own last call."""
    talk = Talk()
    helper = {"role": "system", "content": "you help"}
    talks = [[SYSTEM, u("the task")], *([helper, u(f"part {n}")] for n in range(3))]
    last: list[str | None] = [None] * len(talks)
    talk.say(talks[0], "I delegate")
    last[0], talks[0] = "s0", [*talks[0], a("I delegate"), u("go on")]
    for n in range(1, data.draw(st.integers(4, 14))):
        who = data.draw(st.integers(0, len(talks) - 1))
        link = talk.say(list(talks[who]), f"answer {n}")
        if last[who] is None:
            assert (link.transition, link.call_kind) == ("forked", "subagent")
        else:
            assert (link.transition, link.parent_step_uid) == ("extends", last[who])
            assert link.call_kind == ("subagent" if who else "main")
        last[who] = f"s{n}"
        talks[who] = [*talks[who], a(f"answer {n}"), u("and then?")]


@given(st.data())
def test_the_best_match_is_found_without_looking_at_all(data: st.DataObject) -> None:
    """Against the definition: most messages shared, of equals one used up whole, of those the latest."""
    words = st.lists(st.sampled_from("abc"), min_size=1, max_size=5)
    talk, messages = Talk(), []
    for _ in range(data.draw(st.integers(1, 9))):
        base = data.draw(st.sampled_from([[], *messages]))
        messages.append([*base[: data.draw(st.integers(0, len(base)))], *data.draw(words)])
        talk.say([u(word) for word in messages[-1]], None)
    prompt = data.draw(st.sampled_from(messages))[: data.draw(st.integers(0, 9))] + data.draw(words)
    call = talk._hasher.call(
        step_uid="new",
        prompt=None,
        response=None,
        messages=[u(word) for word in prompt],
        response_message=None,
        tools=None,
        source="blackbox",
        status="ok",
        call_kind="main",
    )
    node, m = talk.links.most_shared(call)
    shared = [prefix([*map(ord, one)], [*map(ord, prompt)]) for one in messages]
    wanted = max((n, n == len(one), place) for place, (n, one) in enumerate(zip(shared, messages, strict=True)))
    assert m == wanted[0]
    assert (None if node is None else node.step_uid) == (f"s{wanted[2]}" if m else None)
    link = talk.links.place(call)
    assert link.n_shared_messages == max(shared)
    if max(shared):
        assert link.parent_step_uid in {f"s{place}" for place, n in enumerate(shared) if n == max(shared)}


def prefix(left: list[int], right: list[int]) -> int:
    n = 0
    while n < min(len(left), len(right)) and left[n] == right[n]:
        n += 1
    return n


ids = st.lists(st.integers(0, 2), max_size=8)


@given(st.one_of(st.text(), st.text(st.characters(max_codepoint=127), max_size=60)))
def test_a_fingerprint_has_the_letters_and_digits_of_a_text(text: str) -> None:
    letters = "".join(character for character in text if character.isalnum()).lower()
    fingerprint = fingerprint_answer({"role": "assistant", "content": text})
    assert fingerprint.begin == letters[:48] and fingerprint.end == letters[-48:]


@given(ids, ids)
def test_shared_prefix(left: list[int], right: list[int]) -> None:
    shared = shared_prefix(np.array(left, np.int32), np.array(right, np.int32))
    assert shared == prefix(left, right)


@given(st.lists(st.tuples(ids, ids), max_size=10), ids)
def test_the_forest_knows_every_prefix_though_it_keeps_tips_only(
    steps: list[tuple[list[int], list[int]]], query: list[int]
) -> None:
    forest = TokenForest()
    for number, (prompt, response) in enumerate(steps):
        array = np.array(prompt, np.int32)
        forest.add(number, np.array([*prompt, *response], np.int32), forest.matches(array))
    matches = forest.matches(np.array(query, np.int32))
    assert matches == {n: prefix([*prompt, *response], query) for n, (prompt, response) in enumerate(steps)}
