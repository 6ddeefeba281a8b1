"""Text search against looking through every message by hand, again after each write: what is kept never goes stale."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.pool import Pool
from core.pool.facets import count_by_sql
from core.pool.textsearch import N_KEPT
from core.types import Annotation, Step, View

NOW = 1e9
WORDS = ("alpha", "Beta", 'say "x"\n', "Ünder", "a%b", "")
texts = st.sampled_from(["alpha", "ALPH", "beta", '"x"', "\n", "ünd", "%", "a_b", "role", "zeta", "y\\"])
step = st.tuples(st.lists(st.sampled_from(WORDS), max_size=3), st.sampled_from(WORDS), st.integers(0, 2))


def holds(message: dict[str, Any], text: str) -> bool:
    """As the filter says: the text stands in the message, keys and all; case is ignored."""
    spelled = [message["role"], "role", "content", message["content"]]
    return any(text.lower() in part.lower() for part in spelled)


@given(
    st.lists(st.lists(step, min_size=1, max_size=4), min_size=1, max_size=4), st.lists(texts, min_size=1, max_size=3)
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_search_finds_what_reading_finds_before_and_after_writes(
    batches: list[list[tuple[list[str], str, int]]], wanted: list[str]
) -> None:
    pool = Pool.open(":memory:", clock=lambda: NOW, threads=1)
    made: list[Step] = []
    for batch in batches:
        fresh = []
        for said, answer, owner in batch:
            parent = next((s for s in reversed([*made, *fresh]) if s.trajectory_uid == f"t{owner}"), None)
            before = [*(parent.messages or ()), parent.response_message] if parent else []
            fresh.append(
                Step(
                    f"s{len(made) + len(fresh)}", f"t{owner}", "p", len(before), NOW,
                    messages=[*before, *({"role": "user", "content": word} for word in said)],
                    response_message={"role": "assistant", "content": answer},
                    parent_step_uid=parent.step_uid if parent else None, n_shared_messages=len(before),
                )
            )  # fmt: skip
        pool.append(fresh)
        made += fresh
        for text in wanted:
            view = View({"text": text})
            expected = {
                s.step_uid
                for s in made
                if any(holds(m, text) for m in [*(s.messages or ())[s.n_shared_messages :], s.response_message])
            }
            assert set(pool.steps(view, limit=None)["step_uid"].to_pylist()) == expected
            assert pool.count_steps(view) == len(expected)
            with pool._db.read() as cursor:  # the filter by itself, as the plain condition has it
                assert sum(n for _, n in count_by_sql(cursor, view, ["source"], 9)["source"]) == len(expected)
    pool.close()


def test_few_texts_are_kept_and_labels_reach_them_all() -> None:
    pool = Pool.open(":memory:", clock=lambda: NOW)
    pool.append(
        [Step(f"s{i}", "t", "p", i, NOW, messages=[{"role": "user", "content": f"word{i}"}]) for i in range(20)]
    )
    for i in range(20):
        assert pool.steps(View({"text": f"word{i}"}))["step_uid"].to_pylist()[-1] == f"s{i}"
    assert len(pool._db.beside["texts"]._known) == N_KEPT
    view = View({"text": "word1", "quality": "good"})
    pool.annotate([Annotation("quality", "good", "a", "h", NOW, step_uid=f"s{i}") for i in (1, 5, 12)])
    assert set(pool.steps(view)["step_uid"].to_pylist()) == {"s1", "s12"}
    assert pool.facets(view, ["quality", "channel"]) == {"quality": [("good", 2)], "channel": [("train", 2)]}
    assert pool.count_trajectories(view) == pool.count_groups(view) == 1
    assert len(pool.plan_rows(view, channel=None)) == 2
    _, n = pool.annotate_view(view, "step", "tag", "x", author="a", source="h")
    assert n == 2
    pool.close()
