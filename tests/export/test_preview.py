"""Previews: each format's rows are the captured tokens with the plan's mask and advantages, and those of its file.

The references are tokens written out by hand, the plan's advantages, and torch's own reader.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from core.errors import InvalidInput
from core.export import EXPORTERS, export
from core.export.preview import preview
from core.export.reading import plain_pickle, torch_file
from core.serving.tokenizer import load_tokenizer
from tests.export.conftest import conversation, done
from tests.export.test_formats import ROWS, advantages, filled, made

__all__ = ["filled"]

WHOLE_ROWS = ("trl_grpo", "verl_rollout", "slime", "prime_rl", "areal", "tinker")
"""Formats with a row for each trajectory of ``ROWS``, and advantages of the plan."""
LABELLED = ("trl_sft", "skyrl_sft", "axolotl")


def shown(pool, name, planned, **arguments):
    options = {"merge": "trajectory"} if "merge" in EXPORTERS[name].choices else {}
    return preview(EXPORTERS[name], planned, pool, options, **arguments)


def same(one, ids, mask):
    assert one.ids.tolist() == ids and one.loss.tolist() == [bool(value) for value in mask]


@pytest.mark.parametrize("name", WHOLE_ROWS)
def test_rows_are_the_captured_tokens_with_the_plans_advantages(filled, name):
    planned = made(filled)
    rows = shown(filled, name, planned).rows
    assert len(rows) == len(ROWS)
    for row, (uid, (ids, mask, scores)) in zip(rows, ROWS.items(), strict=True):
        (one,) = row.tokens
        same(one, ids, mask)
        known = one.loss
        assert one.logprobs[known].tolist() == [score for score, m in zip(scores, mask, strict=True) if m]
        assert one.advantages[known] == pytest.approx(advantages(planned)[uid], rel=1e-6)
        assert np.isnan(one.advantages[~known]).all() and np.isnan(one.logprobs[~known]).all()


def test_openrlhf_rows_have_rewards_and_no_advantages(filled):
    rows = shown(filled, "openrlhf", made(filled)).rows
    for row, (ids, mask, _), reward in zip(rows, ROWS.values(), (1.0, 0.25, 0.0, 0.5), strict=True):
        same(row.tokens[0], ids, mask)
        assert row.tokens[0].advantages is None and row.fields["reward"] == reward


@pytest.mark.parametrize("name", LABELLED)
def test_supervised_rows(filled, name):
    rows = shown(filled, name, made(filled, "sft")).rows
    for row, (ids, mask, _) in zip(rows, ROWS.values(), strict=True):
        same(row.tokens[0], ids, mask)
        assert row.tokens[0].advantages is None


@pytest.mark.parametrize("name", ["rllm", "packed_tree", "steps_parquet"])
def test_a_sequence_for_each_step(filled, name):
    planned = made(filled)
    sequences = [one for row in shown(filled, name, planned).rows for one in row.tokens]
    stored = [filled.steps.get(uid) for uid in planned.step_uids]
    assert len(sequences) == len(stored)
    expected = {
        (*step["prompt_ids"], *step["response_ids"]): (len(step["prompt_ids"]), step["trajectory_uid"])
        for step in stored
    }
    for one in sequences:
        n_prompt, uid = expected.pop(tuple(one.ids.tolist()))
        assert one.loss.tolist() == [k >= n_prompt for k in range(len(one.ids))]
        assert one.advantages[one.loss] == pytest.approx(advantages(planned)[uid], rel=1e-6)
    assert not expected


def test_a_pair_is_shown_side_by_side(filled):
    rows = shown(filled, "trl_dpo", made(filled, "dpo")).rows
    assert [[one.name for one in row.tokens] for row in rows] == [["chosen", "rejected"]] * 2
    for row, (chosen, rejected) in zip(rows, (("a", "b"), ("d", "c")), strict=True):
        for one, uid in zip(row.tokens, (chosen, rejected), strict=True):
            same(one, *ROWS[uid][:2])
    labels = [row.fields["label"] for row in shown(filled, "trl_kto", made(filled, "kto")).rows]
    assert labels == [True, False, False, True], "0.5 and more is desirable"


@pytest.mark.parametrize("name", ["openai_messages", "llama_factory"])
def test_text_formats_say_which_messages_are_trained(filled, name):
    rows = shown(filled, name, made(filled, "sft")).rows
    assert len(rows) == 6, "the texts of the two turns do not continue each other"
    for row in rows:
        assert not row.tokens and [message["role"] for message in row.messages] == ["user", "assistant"]
        assert list(row.trained) == [False, True] and row.messages[1]["content"] == "ok"


def test_clawgym_lines_are_shown_as_its_loader_encodes_them(pool):
    tokenizer = load_tokenizer()
    context, answer = (
        tokenizer.encode(text) for text in ("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "ok<|im_end|>")
    )
    pool.steps.append(
        conversation("a", "A", [(context, answer)], tokenizer_hash=tokenizer.hash), completions=done("a", reward=1.0)
    )
    (row,) = shown(pool, "clawgym_sft", made(pool, "sft")).rows
    same(row.tokens[0], [*context, *answer], [0] * len(context) + [1] * len(answer))
    assert row.fields["exact"] is True and row.fields["dropped by the loader"] is False


@pytest.mark.parametrize("name", sorted(EXPORTERS.keys() - {"clawgym_sft"}))
def test_it_shows_the_rows_of_the_file(filled, tmp_path, name):
    exporter = EXPORTERS[name]
    algorithm = {"trl_dpo": "dpo", "trl_kto": "kto"}.get(name, "sft" if exporter.imitates else "grpo")
    planned = made(filled, algorithm)
    file = export(planned, filled, name, tmp_path).path
    before = preview(exporter, planned, filled, {})
    after = list(exporter.read(file.read_bytes(), exporter.settings({})))
    assert before.is_whole and len(before.rows) == len(after) and repr(before.rows) == repr(after)


@pytest.mark.parametrize("name", ["trl_grpo", "trl_dpo"])
def test_of_a_large_plan_whole_groups_are_shown(filled, name):
    planned = made(filled, {"trl_dpo": "dpo"}.get(name, "grpo"))
    every = shown(filled, name, planned)
    one, two = (shown(filled, name, planned, first_group=k, max_tokens=20) for k in range(2))
    assert every.is_whole and not one.is_whole and (one.n_groups, two.n_groups) == (1, 1)
    assert repr([*one.rows, *two.rows]) == repr(every.rows)
    with pytest.raises(InvalidInput, match="no group 2"):
        shown(filled, name, planned, first_group=2, max_tokens=20)


def test_torch_reads_the_same(filled, tmp_path):
    import torch

    for name in ("areal", "slime"):
        path = export(made(filled), filled, name, tmp_path).path
        theirs, ours = torch.load(path, weights_only=True), torch_file(path.read_bytes())
        if name == "slime":
            assert ours == theirs
            continue
        for one, other in zip(theirs, ours, strict=True):
            assert one.keys() == other.keys()
            for key, value in one.items():
                assert value.tolist() == other[key].tolist() and str(value.dtype).endswith(str(other[key].dtype))


def test_a_preview_refuses_what_the_export_refuses(filled):
    with pytest.raises(InvalidInput, match="no pairs"):
        shown(filled, "trl_dpo", made(filled))
    with pytest.raises(InvalidInput, match="no option 'colour'"):
        preview(EXPORTERS["trl_sft"], made(filled, "sft"), filled, {"colour": "red"})


def test_a_pickle_cannot_call_other_functions():
    with pytest.raises(pickle.UnpicklingError, match=r"os\.system|posix\.system"):
        plain_pickle(pickle.dumps(__import__("os").system))
