"""ClawGym's filters on branches: what they leave of trajectories whose trees are written down by hand."""

from __future__ import annotations

from typing import Any

import pytest

from core.batch.plan import count_plan, plan
from core.batch.recipe import parse_recipe
from core.errors import InvalidInput
from core.export import export
from core.types import Step, View
from tests.batch.keeping_all import SFT_ALL
from tests.batch.test_chains import add, pool, step

__all__ = ["pool"]


def extends(uid: str, index: int, prompt: list[int], answer: list[int], parent: str, **fields: Any) -> Step:
    own = {"parent_step_uid": parent, "n_shared_tokens": len(prompt) - 1, "transition": "extends"}
    return step(uid, index, prompt, answer, **{**own, **fields})


def again(uid: str, index: int, prompt: list[int], answer: list[int], parent: str) -> Step:
    """Another answer to the whole prompt of ``parent``."""
    return extends(uid, index, prompt, answer, parent, n_shared_tokens=len(prompt), transition="forked")


def fill(pool) -> None:
    # line: 0 - 1 - 2.
    add(pool, step("line.0", 0, [1], [2]), extends("line.1", 1, [1, 2, 3], [4], "line.0"),
        extends("line.2", 2, [1, 2, 3, 4, 5], [6], "line.1"), reward=1.0)  # fmt: skip
    # retry: the answer of step 1 was lost, the same prompt was sent again, and that answer was continued.
    add(pool, step("retry.0", 0, [1], [2]), extends("retry.1", 1, [1, 2, 3], [4], "retry.0"),
        again("retry.2", 2, [1, 2, 3], [7], "retry.1"),
        extends("retry.3", 3, [1, 2, 3, 7, 5], [6], "retry.2"), reward=0.0)  # fmt: skip
    # compact: the context is made shorter at step 2, and answered twice; step 4 continues the second answer.
    add(pool, step("compact.0", 0, [1, 8, 8], [2]), extends("compact.1", 1, [1, 8, 8, 2, 3], [4], "compact.0"),
        step("compact.2", 2, [9], [5], transition="compacted"), again("compact.3", 3, [9], [6], "compact.2"),
        extends("compact.4", 4, [9, 6, 3], [7], "compact.3"), reward=1.0)  # fmt: skip
    # fork: back to an earlier state with another question, three times.
    add(pool, step("fork.0", 0, [1], [2]), *(
        extends(f"fork.{k}", k, [1, 2, 10 + k], [4], "fork.0", transition="extends" if k == 1 else "forked",
                n_shared_tokens=2) for k in (1, 2, 3)
    ), reward=0.0)  # fmt: skip


def left(pool, **recipe: Any) -> set[str]:
    chosen = parse_recipe({**SFT_ALL, **recipe})
    made = plan(pool, View(), chosen)
    assert made.counts["n_steps"] == count_plan(pool, View(), chosen)["n_steps"]
    every = set(plan(pool, View(), parse_recipe(SFT_ALL)).step_uids)
    assert len(every) - len(made.step_uids) == sum(reason.n_steps for reason in made.excluded)
    return every - set(made.step_uids)


def test_answers_that_were_sampled_again_leave(pool):
    fill(pool)
    assert left(pool, drop_dead_leaves=True) == {"retry.1", "compact.2"}


def test_steps_after_a_compaction_leave(pool):
    fill(pool)
    assert left(pool, drop_compacted=True) == {"compact.2", "compact.3", "compact.4"}


@pytest.mark.parametrize(
    ("most", "gone"),
    [(3, set()), (2, {"compact", "fork"}), (1, {"retry", "compact", "fork"})],
)
def test_trajectories_with_too_many_ends_leave(pool, most, gone):
    """Ends: line 1, retry 2, compact 3 (before the compaction, the lost answer, the last), fork 3."""
    fill(pool)
    assert {uid.split(".")[0] for uid in left(pool, max_leaves=most)} == gone


def test_dead_leaves_are_no_ends(pool):
    """Each filter sees what the one before it left: without its lost answers, retry has one end and compact two."""
    fill(pool)
    leaving = left(pool, drop_dead_leaves=True, max_leaves=1)
    assert {uid.split(".")[0] for uid in leaving - {"retry.1"}} == {"compact", "fork"}
    leaving = left(pool, drop_dead_leaves=True, drop_compacted=True, max_leaves=1)
    assert {uid.split(".")[0] for uid in leaving} == {"retry", "compact", "fork"}
    assert {"compact.0", "compact.1"}.isdisjoint(leaving), "without the compaction's branch, one end is left"


def test_the_least_of_a_group_counts_trajectories(pool):
    """ClawGym's own "at least 4" counts the pieces that a trajectory is cut into."""
    fill(pool)
    add(pool, step("other.0", 0, [5], [6], transition="compacted"), reward=0.0)
    assert left(pool, min_rollouts=5) == set()
    assert len(left(pool, min_rollouts=6)) == 17
    with pytest.raises(InvalidInput, match="min_rollouts is at most n_rollouts"):
        parse_recipe({"n_rollouts": 4, "min_rollouts": 5})


def test_an_export_has_what_the_plan_has(pool, tmp_path):
    fill(pool)
    recipe = parse_recipe({"algorithm": "sft", "options": {"min_reward": 0.5}, "drop_compacted": True})
    made = plan(pool, View(), recipe)
    assert set(made.step_uids) == {"line.0", "line.1", "line.2", "compact.0", "compact.1"}
    result = export(made, pool, "steps_parquet", tmp_path)
    assert result.n_rows == 5
    assert {one["reason"] for one in result.manifest["excluded"]} == {"compacted", "rejected"}
