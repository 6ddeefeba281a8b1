"""What came back on an answer: the user's next words, or the results of its tools."""

from __future__ import annotations

from core.pool import Pool
from core.types import Step
from tests.pool.test_restore import link_all

SYSTEM = {"role": "system", "content": "s"}
ASK = {"role": "user", "content": "q"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": ""}}]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "42"}
DONE = {"role": "assistant", "content": "it is 42"}
THANKS = {"role": "user", "content": "wrong, look again"}


def test_each_answer_has_what_was_said_to_it() -> None:
    # The agent sends its call back with an empty object: the same call.
    again = {**CALL, "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": "{}"}}]}
    talks = [
        ([SYSTEM, ASK], CALL),
        ([SYSTEM, ASK, again, RESULT], DONE),
        ([SYSTEM, ASK, again, RESULT, DONE, THANKS], CALL),
        ([SYSTEM, {"role": "user", "content": "another task"}], DONE),
    ]
    steps = [
        Step(
            step_uid=f"s{n}",
            trajectory_uid="t",
            prompt_uid="p",
            step_index=n,
            created_at=float(n),
            messages=prompt,
            response_message=answer,
        )
        for n, (prompt, answer) in enumerate(talks)
    ]
    pool = Pool.open(":memory:", clock=lambda: 0.0)
    pool.steps.append(link_all(steps))
    assert pool.steps.next_state("s0") == {
        "step_uid": "s1",
        "created_at": "1970-01-01T00:00:01+00:00",
        "messages": [RESULT],
    }
    state = pool.steps.next_state("s1")
    assert state is not None
    assert (state["step_uid"], state["messages"]) == ("s2", [THANKS])
    assert pool.steps.next_state("s2") is None
    assert pool.steps.next_state("s3") is None
