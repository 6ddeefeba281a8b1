"""Training rows against a search through them, and the guard against log-probs that a model computes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInput
from core.trainer_rows import Guard, LogprobsDiffer, TrainingRow, compare, training_rows


def step(uid: str, prompt: list[int], response: list[int], **fields: Any) -> dict[str, Any]:
    logprobs = [-0.5 - k for k in range(len(response))]
    common = {"step_uid": uid, "trajectory_uid": uid.partition(":")[0], "prompt_uid": "g", "policy_version": 3}
    return {
        **common, "prompt_ids": prompt, "response_ids": response, "response_logprobs": logprobs, "advantage": 1.0,
        **fields,
    }  # fmt: skip


def test_steps_that_extend_make_one_row() -> None:
    masked = step("t:1", [1, 2, 3, 4], [5, 6], advantage=-2.0, response_mask=[1, 0])
    (row,) = training_rows([step("t:0", [1, 2], [3]), masked])
    assert row.ids == [1, 2, 3, 4, 5, 6] and row.mask == [0, 0, 1, 0, 1, 0] and row.n_prompt == 2
    assert row.logprobs == [None, None, -0.5, None, -0.5, None]
    assert row.advantages == [None, None, 1.0, None, -2.0, None]
    assert [(span.begin, span.end) for span in row.spans] == [(2, 3), (4, 6)]


def test_a_step_continues_the_longest_row_that_it_contains() -> None:
    rows = training_rows([step("t:0", [1], [2]), step("t:1", [9], [2]), step("t:2", [1, 2, 3], [4])])
    assert [row.ids for row in rows] == [[1, 2, 3, 4], [9, 2]]
    other = training_rows([step("t:0", [1], [2]), step("u:0", [1, 2], [3])])
    assert [row.ids for row in other] == [[1, 2], [1, 2, 3]]
    assert len(training_rows([step("t:0", [1], [2]), step("t:1", [1, 2], [3])], merge=False)) == 2


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=5), st.lists(st.integers(0, 2), max_size=3)), max_size=8)
)
def test_every_response_is_in_one_row_behind_its_prompt(drawn: list[tuple[list[int], list[int]]]) -> None:
    steps = [step(f"t:{k}", prompt, response) for k, (prompt, response) in enumerate(drawn)]
    rows = training_rows(steps)
    found = {span.step["step_uid"]: (row, span) for row in rows for span in row.spans}
    assert sum(len(row.spans) for row in rows) == len(steps) == len(found)
    for one in steps:
        row, span = found[one["step_uid"]]
        assert row.ids[: span.begin] == one["prompt_ids"] and row.ids[span.begin : span.end] == one["response_ids"]
        assert row.logprobs[span.begin : span.end] == one["response_logprobs"]
    for row in rows:
        in_spans = {k for span in row.spans for k in range(span.begin, span.end)}
        assert {k for k, bit in enumerate(row.mask) if bit} == in_spans
        assert len(row.ids) == len(row.mask) == len(row.logprobs) == len(row.advantages)


def test_token_advantages_stand_where_there_are_any() -> None:
    (row,) = training_rows(
        [step("t:0", [1], [2, 3], advantage=None, token_advantages=[0.5, None], token_returns=[1, 2])]
    )
    assert row.advantages == [None, 0.5, None] and row.returns == [None, 1, 2]


def test_wrong_lists_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="2 response tokens, but 1 response_logprobs"):
        training_rows([step("t:0", [1], [2, 3], response_logprobs=[0.0])])
    with pytest.raises(InvalidInput, match="has no token ids"):
        training_rows([step("t:0", [1], [2]) | {"response_ids": None}])


def rows_of(*versions: int) -> list[TrainingRow]:
    return training_rows([step(f"t{v}:0", [1], [2, 3], policy_version=v) for v in versions])


def test_the_guard_reads_only_what_the_version_sampled() -> None:
    rows = rows_of(3, 2)
    comparison = compare(rows, [[0.0, -0.5, -1.5], [0.0, -0.9, -1.5]], version=3)
    assert comparison.fresh.mean == 0.0 and comparison.by_version[2].max == pytest.approx(0.4)
    assert comparison.total.n == 4 and comparison.total.mean == pytest.approx(0.1)
    # k3 of one token of four: exp(-0.4) - 1 + 0.4.
    assert comparison.total.kl == pytest.approx((math.exp(-0.4) - 0.6) / 4)
    assert comparison.step_metrics()["t2:0"]["n_compared"] == 2
    Guard()(comparison)
    with pytest.raises(LogprobsDiffer, match=r"version 2 differ by 0.2 nats on average over 2 tokens"):
        Guard()(compare(rows, [[0.0, -0.5, -1.5], [0.0, -0.9, -1.5]], version=2))


def test_log_probs_of_a_model_pass_and_shifted_ones_are_refused() -> None:
    import torch

    from tests.tree.models import make, rollouts, separate_logps

    model, sequences = make("Qwen3", torch.float32), rollouts(5)
    scored = [s.tolist() for s, _ in separate_logps(model, sequences)]
    for shift in (0, 1):
        steps, recomputed = [], []
        for k, logps in enumerate(scored):
            ids, first = sequences.sequence(k).tolist(), len(sequences.sequence(k)) - len(logps)
            captured = [*logps[shift:], *logps[:shift]]
            steps.append(step(f"t{k}:0", ids[:first], ids[first:], response_logprobs=captured))
            recomputed.append([0.0] * first + logps)
        comparison = compare(training_rows(steps), recomputed, version=3)
        if not shift:
            Guard()(comparison)
            assert comparison.total.n > 10
        else:
            with pytest.raises(LogprobsDiffer):
                Guard()(comparison)
