"""Near-equal behaviour beside a brute force over all pairs, and what counts as behaviour."""

from __future__ import annotations

import random

from core.synthesis.behaviour import same_behaviour, words_of


def common(one, other):
    n = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        n += 1
    return n


def brute(behaviours, shared, share):
    """The definition of the docs, pair by pair."""

    def near(one, other):
        return common(one, other) >= shared * max(len(one), len(other)) - 1e-9

    def covered(one, other):
        mine = [words for words in behaviours[one] if words]
        return sum(any(near(words, its) for its in behaviours[other] if its) for words in mine) / len(mine)

    same = {}
    names = [name for name, attempts in behaviours.items() if any(attempts)]
    for at, later in enumerate(names):
        for earlier in names[:at]:
            if earlier not in same and min(covered(later, earlier), covered(earlier, later)) >= share:
                same[later] = (earlier, min(covered(later, earlier), covered(earlier, later)))
                break
    return same


def test_the_tree_finds_the_pairs_of_the_definition():
    chance = random.Random(5)
    n_same = 0
    for _ in range(60):
        paths = [tuple(chance.choices("ab", k=chance.randint(0, 9))) for _ in range(5)]
        behaviours = {
            f"t{n}": [chance.choice(paths)[: chance.choice([99, 99, 7])] for _ in range(chance.randint(0, 5))]
            for n in range(8)
        }
        shared, share = chance.choice([(0.8, 0.5), (0.5, 0.75), (1.0, 1.0)])
        same = same_behaviour(behaviours, shared=shared, share=share)
        assert {name: (one.task_id, one.share) for name, one in same.items()} == brute(behaviours, shared, share)
        n_same += len(same)
    assert n_same > 60


def call(name, arguments):
    return {"function": {"name": name, "arguments": arguments}}


def test_behaviour_is_the_words_of_tool_calls():
    steps = [
        {"call_kind": "main", "response_message": {"content": "I think.", "tool_calls": [call("list_files", "{}")]}},
        {"call_kind": "auxiliary", "response_message": {"tool_calls": [call("title", '{"a": 1}')]}},
        {
            "call_kind": "main",
            "response_message": {"tool_calls": [call("write", '{"path":"a.txt",  "content":"x y"}')]},
        },
        {"call_kind": "main", "response_message": {"content": "Done."}},
        {"call_kind": "main", "response_message": None},
    ]
    words = words_of(steps)
    assert words[0] == "call:list_files"
    assert words[3:] == words_of([{**steps[2], "response_message": {"tool_calls": [
        call("write", '{"content": "x y", "path": "a.txt"}')]}}])  # fmt: skip
    assert "title" not in "".join(words) and "think" not in words
    broken = [{"call_kind": "main", "response_message": {"tool_calls": [call("write", '{"path": ')]}}]
    assert words_of(broken)[:2] == ("call:write", "{")


def test_no_attempt_is_no_duplicate():
    assert same_behaviour({}) == same_behaviour({"a": [], "b": [()]}) == {}
