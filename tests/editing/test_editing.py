"""Edited answers, from the message to the trainer's own collator: the loss is on exactly the edited text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from core.batch.datasets import freeze_version, version_plan
from core.batch.leases import Fetch, Leases
from core.batch.plan import count_plan, plan
from core.batch.recipe import parse_recipe
from core.editing import captured_message, save_edit
from core.errors import InvalidInput, NotFound
from core.export import export
from core.export.preview import preview
from core.export.trl_pairs import DPO
from core.pool.redaction.rules import parse_redaction
from core.types import View

from .conftest import T0, TOKENIZER, call, rollout

READ = {"role": "assistant", "content": "I look again.", "tool_calls": [call("read", '{"path": "notes.txt"}')]}
READ_TEXT = 'I look again.\n<tool_call>\n{"name": "read", "arguments": {"path": "notes.txt"}}\n</tool_call><|im_end|>'
WORDS = {"role": "assistant", "content": "It says “grüß”."}


def edit(pool, settings, step_uid, message):
    return save_edit(pool, settings, step_uid, message, author="ann", source="studio", at=T0 + 5)


def planned(pool, algorithm, **options):
    return plan(pool, View(), parse_recipe({"algorithm": algorithm, "options": options}))


def uids(made):
    return made.steps["step_uid"].to_pylist()


def test_the_ids_spell_the_edited_answer_as_the_template_writes_it(pool, settings):
    one = edit(pool, settings, "bad.0", READ)
    assert one.text == READ_TEXT
    assert TOKENIZER.decode(one.response_ids.tolist(), skip_special=False) == READ_TEXT
    step = pool.steps.get("bad.0")
    rendered = TOKENIZER.render([*step["messages"], READ], step["tools"], add_generation_prompt=False)
    ids = [*step["prompt_ids"].tolist(), *one.response_ids.tolist()]
    assert TOKENIZER.decode(ids, skip_special=False) + "\n" == rendered
    assert step["response_message"]["tool_calls"][0]["function"]["arguments"] == '{"path": "note.txt"}', "as captured"


def test_trl_trains_on_exactly_the_edited_text(pool, settings, tmp_path):
    from datasets import load_dataset
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    edit(pool, settings, "bad.0", READ)
    edit(pool, settings, "good.1", WORDS)
    made = planned(pool, "sft")
    result = export(made, pool, "trl_sft", tmp_path, merge="trajectory")
    rows = load_dataset("parquet", data_files=str(result.path), split="train", cache_dir=str(tmp_path / "hf"))
    batch = DataCollatorForLanguageModeling(pad_token_id=0)(list(rows))
    trained = [
        TOKENIZER.decode([int(i) for i in labels if i != -100], skip_special=False) for labels in batch["labels"]
    ]
    captured = 'read", "arguments": {"path": "note.txt"}}\n</tool_call><|im_end|>'
    assert [text for text in trained if not text.endswith(captured)] == [READ_TEXT, "It says “grüß”.<|im_end|>"]
    assert len(trained) == 3, "the answer that was edited is not trained on, the one before it is"
    assert "2 answers were edited by people" in json.dumps(result.manifest["differences"])
    sources = made.steps["token_source"].to_pylist()
    assert sources == ["engine", "edited", "edited"] and made.steps["policy_version"].to_pylist()[1:] == [None, None]


def test_trajectories_of_one_query_hold_edited_answers_in_their_places(pool, settings):
    edit(pool, settings, "bad.0", READ)
    uids = planned(pool, "sft").trajectories["trajectory_uid"].to_pylist()[::-1]
    assert len(uids) > 1
    read = list(pool.training.trajectories(uids))
    assert [one["trajectory_uid"] for one in read] == uids
    for one in read:
        alone = pool.training.trajectory(one["trajectory_uid"])
        assert [step["response_message"] for step in one["steps"]] == [s["response_message"] for s in alone["steps"]]
    assert READ in [step["response_message"] for one in read for step in one["steps"]]


def test_trl_compares_the_edited_answer_with_the_captured_one(pool, settings, tmp_path):
    from datasets import load_dataset
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    from tests.export.test_trainers import program_beside

    edit(pool, settings, "sad.1", WORDS)
    made = planned(pool, "dpo")
    assert [(one["prompt_uid"], one["margin"]) for one in made.pairs.to_pylist()] == [("A", 1.0), ("B", None)]
    only = planned(pool, "dpo", edits="only")
    assert len(only.pairs) == 1 and only.counts == {
        "n_groups": 1, "n_trajectories": 2, "n_steps": 2,
        "n_tokens": int(only.lengths.sum()), "n_loss_tokens": only.counts["n_loss_tokens"],
    }  # fmt: skip
    result = export(made, pool, "trl_dpo", tmp_path)
    data = load_dataset("parquet", data_files=str(result.path), split="train", cache_dir=str(tmp_path / "hf"))
    parts = {"": [("chosen_ids", "chosen_mask"), ("rejected_ids", "rejected_mask")]}
    collate = program_beside(result.path, "trl_exact")._Masking(DataCollatorForPreference(pad_token_id=0), parts)
    batch = collate([data[1]])
    texts = [
        TOKENIZER.decode(ids[mask.bool()].tolist(), skip_special=False)
        for ids, mask in zip(batch["input_ids"], batch["completion_mask"], strict=True)
    ]
    assert texts == ["It says “grüß”.<|im_end|>", "Nothing.<|im_end|>"]
    (row,) = preview(DPO, only, pool, {}).rows
    assert [one.ids[one.loss].tolist() for one in row.tokens] == [TOKENIZER.encode(text) for text in texts]


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "step_gae", "reinforce_plus_plus", "kto"])
def test_no_other_plan_takes_edited_tokens(pool, settings, algorithm):
    before = planned(pool, algorithm)
    edit(pool, settings, "bad.0", READ)
    after = planned(pool, algorithm)
    assert after.hash == before.hash and "edited" not in after.steps["token_source"].to_pylist()


def test_a_recipe_that_needs_sampled_tokens_refuses_edited_ones():
    with pytest.raises(InvalidInput, match="were not sampled") as refused:
        parse_recipe({"algorithm": "grpo", "token_sources": ["engine", "edited"]})
    assert refused.value.field == "recipe.token_sources"
    with pytest.raises(InvalidInput, match="no option 'edits'"):
        parse_recipe({"algorithm": "grpo", "options": {"edits": "with"}})


def test_undo_and_redo_take_effect_in_the_plan_and_rows_of_a_lease_stay(pool, settings, tmp_path):
    before = planned(pool, "sft")
    first = edit(pool, settings, "good.1", WORDS)
    second = edit(pool, settings, "good.1", {"role": "assistant", "content": "Second."})
    made = planned(pool, "sft")
    assert uids(made) == ["good.0", second.edit_uid]
    leased = Leases(pool, clock=lambda: T0, new_uid=lambda: "batch-1", policy_version=lambda _: None).fetch(
        Fetch("trainer", recipe={"algorithm": "sft"})
    )
    assert uids(leased.plan) == uids(made)
    assert [row["source"] for row in pool.labels.annotations(step_uid="good.1")] == ["studio", "studio"]
    pool.labels.undo(second.action_uid)
    assert uids(planned(pool, "sft")) == ["good.0", first.edit_uid]
    pool.labels.undo(first.action_uid)
    assert planned(pool, "sft").hash == before.hash and pool.edits.current("good.1") is None
    leases = Leases(pool, clock=lambda: T0, new_uid=lambda: "", policy_version=lambda _: None)
    stored = leases.plan_of("batch-1")
    sequences = stored.reader.sequences(stored.step_uids)
    assert sequences.sequence(1)[sequences.n_prompt[1] :].tolist() == second.response_ids.tolist()
    pool.labels.redo(second.action_uid)
    assert planned(pool, "sft").hash == made.hash
    assert uids(leases.preview(Fetch("other", recipe={"algorithm": "sft"}))) == [], "another consumer's lease"


def test_counts_are_those_of_the_plan_and_limits_apply(pool, settings):
    edit(pool, settings, "bad.0", READ)
    words = edit(pool, settings, "sad.1", WORDS)
    for recipe in (
        {"algorithm": "sft"}, {"algorithm": "dpo"}, {"algorithm": "sft", "batch_size": 2},
        {"algorithm": "sft", "max_response_tokens": 12}, {"algorithm": "sft", "options": {"edits": "without"}},
        {"algorithm": "sft", "token_sources": ["engine"]},
    ):  # fmt: skip
        made = plan(pool, View(), parse_recipe(recipe))
        assert count_plan(pool, View(), parse_recipe(recipe)) == made.counts
        total = made.remaining[0][3]
        assert total == made.counts["n_steps"] + sum(one.n_steps for one in made.excluded)
    reasons = {one.reason: one.n_steps for one in plan(pool, View(), parse_recipe({
        "algorithm": "sft", "batch_size": 1, "max_response_tokens": len(words.response_ids)})).excluded}  # fmt: skip
    assert reasons["edits_too_long"] == 1 and reasons["edits_over_batch"] == 1
    assert "edited" in planned(pool, "sft").steps["token_source"].to_pylist()
    only_sampled = plan(pool, View(), parse_recipe({"algorithm": "sft", "token_sources": ["engine"]}))
    assert "edited" not in only_sampled.steps["token_source"].to_pylist()


def test_text_formats_have_the_edited_message(pool, settings, tmp_path):
    edit(pool, settings, "bad.0", READ)
    made = planned(pool, "sft", edits="only")
    result = export(made, pool, "openai_messages", tmp_path)
    (line,) = [json.loads(text) for text in result.path.read_text().splitlines()]
    assert line["messages"][-1] == READ and len(line["messages"]) == 2


def test_a_version_keeps_its_edits_and_redaction_leaves_out_those_with_a_hit(pool, settings):
    secret = edit(pool, settings, "bad.1", {"role": "assistant", "content": "Write to ann@example.com."})
    kept = edit(pool, settings, "sad.1", WORDS)
    recipe = parse_recipe({"algorithm": "sft"})
    whole = freeze_version(pool, "whole", View(), recipe, author="ann")
    rules = parse_redaction({"rules": ["email"]})
    clean = freeze_version(pool, "clean", View(), recipe, author="ann", redaction=rules)
    made = version_plan(pool, "whole")
    for one in (secret, kept):
        pool.labels.undo(one.action_uid)
    assert uids(version_plan(pool, "whole")) == uids(made) == ["good.0", "good.1", secret.edit_uid, kept.edit_uid]
    assert version_plan(pool, "whole").hash == made.hash and pool.versions.verify("whole")
    assert uids(version_plan(pool, "clean"))[2:] == [kept.edit_uid]
    assert clean["redaction"]["report"]["n_edits_left_out"] == 1
    bare = freeze_version(pool, "bare", View(), recipe, author="ann")
    assert len({one["content_hash"] for one in (whole, clean, bare)}) == 3


@pytest.mark.parametrize(
    ("message", "field", "words"),
    [
        ({"content": "  "}, "message.content", "empty"),
        ({"content": "I don't know."}, "message", "captured one"),
        ({"content": "a<|im_end|>b"}, "message.content", "special token"),
        ({"tool_calls": [call("delete", "{}")]}, "message.tool_calls[0].function.name", "no tool"),
        ({"tool_calls": [call("read", "{")]}, "message.tool_calls[0].function.arguments", "JSON object"),
        ({"tool_calls": [call("read", "[1]")]}, "message.tool_calls[0].function.arguments", "JSON object"),
        ({"content": ["a"]}, "message.content", "is a text"),
        ({"content": "a", "logprobs": []}, "message.logprobs", "no field"),
    ],
)  # fmt: skip
def test_wrong_edits_name_the_field(pool, settings, message, field, words):
    with pytest.raises(InvalidInput, match=words) as refused:
        edit(pool, settings, "bad.1", message)
    assert refused.value.field == field
    assert pool.edits.of_step("bad.1") == []


def test_a_step_of_another_tokenizer_is_refused(pool, settings):
    pool.steps.append(rollout("other", "C", "Hm.", tokenizer_hash="unknown", model="m"))
    with pytest.raises(InvalidInput, match="tokenizer of m is not known") as refused:
        edit(pool, settings, "other.1", WORDS)
    assert "tokenizers" in str(refused.value.hint)
    pool.steps.append(rollout("unnamed", "C", "Hm.", tokenizer_hash=None))
    assert edit(pool, settings, "unnamed.1", WORDS).tokenizer_hash == TOKENIZER.hash, "it makes the captured ids"
    texts = [
        replace(
            step, prompt_ids=None, response_ids=None, response_logprobs=None, token_source="none", n_shared_tokens=0
        )
        for step in rollout("texts", "C", "Hm.")
    ]
    pool.steps.append(texts)
    with pytest.raises(InvalidInput, match="no token ids"):
        edit(pool, settings, "texts.1", WORDS)
    with pytest.raises(NotFound):
        pool.edits.get("edit-" + "0" * 32)


def test_thinking_is_edited_too(pool, settings):
    one = edit(pool, settings, "bad.1", {"content": "Hello.", "reasoning_content": "The file is gone."})
    assert one.text == "<think>\nThe file is gone.\n</think>\n\nHello.<|im_end|>"
    assert captured_message(pool.steps.get("bad.0")["response_message"])["tool_calls"] == [
        call("read", '{"path": "note.txt"}')
    ]
