"""Tests of the first difference of two trajectories, against comparing every step's tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from core.tree.sequences import Sequences
from studio.widgets.inspect.divergence import Divergence, find_divergence
from tests.effort import settings

ids = st.lists(st.integers(0, 2), min_size=1, max_size=3)


@st.composite
def rollout(draw):
    """Steps of one trajectory: (prompt, response, transition); few ids, so that two often begin alike."""
    steps, context = [], list(draw(ids))
    for place in range(draw(st.integers(1, 4))):
        extends = place == 0 or draw(st.booleans()) or draw(st.booleans())
        if not extends:
            context = list(draw(ids))
        answer = draw(ids)
        steps.append((list(context), answer, None if place == 0 else "extends" if extends else "compacted"))
        context = context + answer + draw(st.lists(st.integers(0, 1), max_size=2))
    return steps


class Tokens:
    """Token sequences by uid."""

    def __init__(self, **rollouts) -> None:
        self.steps = {f"{name}{k}": step for name, steps in rollouts.items() for k, step in enumerate(steps)}

    def sequences(self, step_uids) -> Sequences:
        rows = [self.steps[uid][0] + self.steps[uid][1] for uid in step_uids]
        return Sequences(
            ids=np.array([i for row in rows for i in row], dtype=np.int32),
            offsets=np.cumsum([0, *map(len, rows)]).astype(np.int64),
            n_prompt=np.array([len(self.steps[uid][0]) for uid in step_uids], dtype=np.int64),
            logprobs=None,
            step_uids=list(step_uids),
        )


def rows(name: str, steps) -> list[dict]:
    return [
        {"step_uid": f"{name}{k}", "transition": t, "n_prompt_tokens": len(p), "n_response_tokens": len(r)}
        for k, (p, r, t) in enumerate(steps)
    ]


def plainly(one, other) -> Divergence | None:
    for place, pair in enumerate(zip(one, other, strict=False)):
        a, b = ([(i, False) for i in prompt] + [(i, True) for i in answer] for prompt, answer, _ in pair)
        for token in range(max(len(a), len(b))):
            if a[token : token + 1] != b[token : token + 1]:
                return Divergence(place, token)
    return None if len(one) == len(other) else Divergence(min(len(one), len(other)), None)


@settings(max_examples=300, deadline=None)
@given(rollout(), rollout())
def test_the_parting_is_the_first_step_whose_tokens_differ(one, other):
    divergence = find_divergence(Tokens(a=one, b=other), rows("a", one), rows("b", other))
    assert divergence == plainly(one, other)


@settings(max_examples=60, deadline=None)
@given(rollout(), st.data())
def test_a_rollout_and_its_beginning_part_where_it_ends(one, data):
    cut = data.draw(st.integers(1, len(one)))
    divergence = find_divergence(Tokens(a=one, b=one[:cut]), rows("a", one), rows("b", one[:cut]))
    assert divergence == (None if cut == len(one) else Divergence(cut, None))
