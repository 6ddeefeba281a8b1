"""What goes in comes out, to the token, whatever forest the steps form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from core.errors import NotFound
from core.linking import MessageHasher, TrajectoryLinks
from core.pool import Pool
from core.types import Step
from tests.effort import settings

ids = st.lists(st.integers(0, 3), max_size=6)
message = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "assistant", "tool"]),
        "content": st.sampled_from(["a", "b", "", "ü\n"]),
    }
)


@st.composite
def forests(draw: st.DrawFn) -> list[Step]:
    """Steps of a few trajectories whose prompts often continue, cut or repeat earlier ones."""
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 12))):
        owner = f"t{draw(st.integers(0, 2))}"
        family = [s for s in steps if s.trajectory_uid == owner]
        prompt, messages = draw(st.none() | ids), draw(st.none() | st.lists(message, max_size=3))
        if family and draw(st.booleans()):
            base = draw(st.sampled_from(family))
            whole = [*(base.prompt_ids or ()), *(base.response_ids or ())]
            prompt = [*whole[: draw(st.integers(0, len(whole)))], *draw(ids)]
            context = [*(base.messages or ()), *([base.response_message] if base.response_message else [])]
            messages = [*context[: draw(st.integers(0, len(context)))], *draw(st.lists(message, max_size=2))]
        response = draw(st.none() | ids)
        logprobs = None
        if response is not None:
            logprobs = draw(
                st.none()
                | st.lists(st.none() | st.floats(-20, 0, width=32), min_size=len(response), max_size=len(response))
            )
        steps.append(
            Step(
                step_uid=f"s{number}",
                trajectory_uid=owner,
                prompt_uid="p",
                step_index=number,
                created_at=1e9 + number,
                prompt_ids=prompt,
                response_ids=response,
                response_logprobs=logprobs,
                messages=messages,
                response_message=draw(st.none() | message),
                tools=draw(st.none() | st.just([{"z": 1, "a": [2]}])),
            )
        )
    return steps


def link_all(steps: list[Step]) -> list[Step]:
    """Link as ingest does."""
    from dataclasses import replace

    hasher, open_links = MessageHasher(), {}
    linked = []
    for step in steps:
        links = open_links.setdefault(step.trajectory_uid, TrajectoryLinks())
        call = hasher.call(
            step_uid=step.step_uid,
            prompt=None if step.prompt_ids is None else np.array(step.prompt_ids, np.int32),
            response=None if step.response_ids is None else np.array(step.response_ids, np.int32),
            messages=step.messages,
            response_message=step.response_message,
            tools=step.tools,
            source=step.source,
            status=step.status,
            call_kind=step.call_kind,
        )
        link = links.place(call, step_index=step.step_index)
        linked.append(
            replace(
                step,
                parent_step_uid=link.parent_step_uid,
                n_shared_tokens=link.n_shared_tokens,
                n_shared_messages=link.n_shared_messages,
                transition=link.transition,
            )
        )
    return linked


def same(actual: np.ndarray | None, expected: list[float | None] | None, dtype: type) -> None:
    if expected is None:
        assert actual is None
    else:
        assert actual is not None
        assert actual.dtype == dtype
        wanted = np.array([np.nan if x is None else x for x in expected], dtype)
        np.testing.assert_array_equal(actual, wanted)


@given(forests(), st.integers(1, 12))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_step_comes_back_as_it_went_in(steps: list[Step], batch: int) -> None:
    pool = Pool.open(":memory:", clock=lambda: 0.0)
    linked = link_all(steps)
    for start in range(0, len(linked), batch):
        part = linked[start : start + batch]
        assert pool.steps.append(part) == len(part)
    by_trajectory = {
        uid: {s["step_uid"]: s for s in pool.trajectories.get(uid)["steps"]}
        for uid in {s.trajectory_uid for s in steps}
    }
    for step in steps:
        for restored in (pool.steps.get(step.step_uid), by_trajectory[step.trajectory_uid][step.step_uid]):
            same(restored["prompt_ids"], step.prompt_ids, np.int32)
            same(restored["response_ids"], step.response_ids, np.int32)
            same(restored["response_logprobs"], step.response_logprobs, np.float32)
            assert restored["messages"] == step.messages
            assert restored["response_message"] == step.response_message
            assert restored["tools"] == step.tools
            if step.tools:
                assert list(restored["tools"][0]) == ["z", "a"]
    whole = pool.steps.sequences([s.step_uid for s in reversed(steps)])
    for row, step in enumerate(reversed(steps)):
        own = whole.ids[whole.offsets[row] : whole.offsets[row + 1]].tolist()
        assert own == [*(step.prompt_ids or ()), *(step.response_ids or ())]
        assert whole.n_prompt[row] == len(step.prompt_ids or ())
        above, n_shared = whole.parent[row], whole.n_shared[row]
        assert above == -1 or whole.sequence(above)[:n_shared].tolist() == own[:n_shared]
    pool.close()


def test_shared_tokens_are_stored_once(tmp_path) -> None:
    pool = Pool.open(tmp_path / "p.duckdb")
    prompt, steps = [1, 2, 3], []
    for number in range(10):
        response = [10 + number] * 5
        steps.append(Step(f"s{number}", "t", "p", number, 1e9 + number, prompt_ids=list(prompt), response_ids=response))
        prompt = [*prompt, *response, 7]
    pool.steps.append(link_all(steps))
    with pool._db.read() as cursor:
        stored = cursor.execute("SELECT sum(len(prompt_suffix) + len(response_ids)) FROM step_tokens").fetchone()[0]
    assert stored == 3 + 10 * 5 + 9
    assert pool.trajectories.get("t")["n_unique_tokens"] == stored
    assert pool.trajectories.get("t")["n_prompt_tokens"] == sum(len(s.prompt_ids) for s in steps)
    pool.close()


def test_append_again_changes_nothing_and_counts_conflicts() -> None:
    pool = Pool.open(":memory:")
    step = Step("s", "t", "p", 0, 1e9, prompt_ids=[1], response_ids=[2])
    other = Step("s", "t", "p", 0, 1e9, prompt_ids=[1], response_ids=[3])
    assert pool.steps.append([step, step]) == 1
    assert pool.steps.append([step]) == 0
    assert pool.stats.totals()["n_conflicts"] == 0
    assert pool.steps.append([other]) == 0
    assert pool.steps.append([other, step]) == 0
    assert pool.stats.totals()["n_conflicts"] == 1
    assert pool.steps.get("s")["response_ids"].tolist() == [2]


def test_a_parent_outside_the_trajectory_is_not_leant_on() -> None:
    pool = Pool.open(":memory:")
    pool.steps.append([Step("a", "t1", "p", 0, 1e9, prompt_ids=[1, 2], response_ids=[3])])
    child = Step(
        "b", "t2", "p", 0, 1e9, prompt_ids=[1, 2, 3, 4], response_ids=[], parent_step_uid="a", n_shared_tokens=3
    )
    pool.steps.append([child])
    assert pool.steps.get("b")["prompt_ids"].tolist() == [1, 2, 3, 4]
    assert pool.steps.get("b")["parent_step_uid"] is None


def test_unknown_uids_are_named() -> None:
    pool = Pool.open(":memory:")
    for call in (
        lambda: pool.steps.get("no"),
        lambda: pool.trajectories.get("no"),
        lambda: pool.steps.sequences(["no"]),
    ):
        with pytest.raises(NotFound, match="no"):
            call()
