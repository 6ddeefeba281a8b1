"""What a recipe says of rewards, temperatures, the loss and the critic."""

from __future__ import annotations

import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.batch.rows import training_rows
from core.batch.values import value_steps
from core.errors import InvalidInput, NotFound
from core.serving.model import make_model
from core.types import Annotation, View
from tests.batch.keeping_all import SFT_ALL

from .conftest import T0, done, rollout


def reward(value, source, uid, at=0):
    return Annotation("reward", value, source, source, T0 + at, trajectory_uid=uid)


@pytest.fixture
def filled(pool):
    for k in range(3):
        pool.steps.append(
            rollout(
                f"t{k}", "A", rewards=[0.25, 0.5], at=k, sampling=lambda i, k=k: {"temperature": 1.0 if k else 0.7}
            ),
            completions=done(f"t{k}", reward=0.9 if k == 0 else None),
        )
    return pool


def rewards_of(pool, **recipe):
    made = plan(pool, View(), parse_recipe({"algorithm": "dr_grpo", **recipe}))
    return {t.trajectory_uid: t.reward for group in made.groups for t in group.trajectories}, made


def test_which_rewards_count_is_the_recipes_word(filled):
    filled.labels.annotate([reward(0.1, "judge", "t0"), reward(0.2, "judge", "t1")])
    undone = filled.labels.annotate([reward(0.6, "human", "t1", at=1)])
    filled.labels.annotate([reward(0.7, "human", "t2", at=2), reward(None, "judge", "t2", at=3)])
    assert rewards_of(filled)[0] == {"t0": 0.1, "t1": 0.6, "t2": 0.75}
    assert rewards_of(filled, rewards=["human", "judge"])[0] == {"t0": 0.1, "t1": 0.6, "t2": 0.7}
    assert rewards_of(filled, rewards=["complete", "judge", "steps"])[0] == {"t0": 0.9, "t1": 0.2, "t2": 0.75}
    filled.labels.undo(undone)
    rewards, made = rewards_of(filled, rewards=["human", "judge"])
    assert rewards == {"t0": 0.1, "t1": 0.2, "t2": 0.7}
    made = plan(filled, View(), parse_recipe({"algorithm": "dr_grpo", "rewards": ["judge"]}))
    (left_out,) = [one for one in made.excluded if one.reason == "unscored"]
    assert (left_out.n_trajectories, left_out.view.filters["trajectory_uid"]) == (1, ["t2"])


def test_temperature_and_last_step_leave_steps_out_and_say_which(filled):
    made = plan(filled, View(), parse_recipe({"algorithm": "dr_grpo", "temperature": 1.0}))
    assert {uid.split(".")[0] for uid in made.step_uids} == {"t1", "t2"}
    (cold,) = made.excluded
    assert (cold.reason, cold.n_steps) == ("temperature", 2)
    assert sorted(filled.steps.page(cold.view, limit=None)["step_uid"].to_pylist()) == ["t0.0", "t0.1"]
    last = plan(filled, View(), parse_recipe({"algorithm": "dr_grpo", "loss": "last_step"}))
    assert last.step_uids == ["t0.1", "t1.1", "t2.1"]
    (early,) = last.excluded
    assert sorted(filled.steps.page(early.view, limit=None)["step_uid"].to_pylist()) == ["t0.0", "t1.0", "t2.0"]


def critic(tmp_path, kind):
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(make_model(tmp_path / "base", seed=3))
    config.num_labels, config.pad_token_id = 1, 0
    made = {"token": AutoModelForTokenClassification, "sequence": AutoModelForSequenceClassification}[kind]
    made.from_config(config).save_pretrained(tmp_path / kind)
    return tmp_path / kind


BY_TOKEN = {"algorithm": "reinforce_plus_plus", "options": {"gamma": 0.5}}


@pytest.mark.parametrize(("kind", "recipe"), [("token", SFT_ALL), ("sequence", BY_TOKEN)])
def test_a_named_critic_values_each_step_by_its_prompt(filled, tmp_path, kind, recipe):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

    folder = critic(tmp_path, kind)
    gae = {"algorithm": "step_gae", "value_model": "critic-1"}
    assert "value" in plan(filled, View(), parse_recipe(gae)).lacks[0]
    made = plan(filled, View(), parse_recipe(recipe))
    table = value_steps(made, filled.training, folder)
    assert filled.values.store("critic-1", table) == 6
    loader = {"token": AutoModelForTokenClassification, "sequence": AutoModelForSequenceClassification}[kind]
    model = loader.from_pretrained(folder, dtype=torch.float32).eval()
    for uid, value in zip(*table.to_pydict().values(), strict=True):
        prompt = torch.tensor([list(filled.steps.get(uid)["prompt_ids"])])
        with torch.no_grad():
            logits = model(input_ids=prompt).logits
        alone = logits[0, -1, 0] if kind == "token" else logits[0, 0]
        assert value == pytest.approx(alone.item(), rel=1e-4, abs=1e-6)
    assert filled.values.models() == [{"model": "critic-1", "n_steps": 6}]
    scored = plan(filled, View(), parse_recipe(gae))
    assert len(scored.steps) == 6 and scored.level == "step" and not scored.lacks
    assert plan(filled, View(), parse_recipe({**gae, "value_model": "critic-2"})).lacks


def test_wrong_critics_are_named(filled, tmp_path):
    made = plan(filled, View(), parse_recipe(SFT_ALL))
    with pytest.raises(InvalidInput, match="has no value head"):
        value_steps(made, filled.training, make_model(tmp_path / "policy", seed=3))
    with pytest.raises(InvalidInput, match="no model in"):
        value_steps(made, filled.training, tmp_path / "nothing")
    with pytest.raises(NotFound):
        import pyarrow as pa

        filled.values.store("c", pa.table({"step_uid": ["nobody"], "value": [1.0]}))


def test_rows_say_where_each_response_begins(filled):
    made = plan(filled, View(), parse_recipe(SFT_ALL))
    for merge in (False, True):
        (rows,) = training_rows(made, filled.training, merge=merge)
        assert sorted(rows.steps.tolist()) == list(range(6))
        for place, begin in zip(rows.steps.tolist(), rows.begins.tolist(), strict=True):
            answer = list(filled.steps.get(made.step_uids[place])["response_ids"])
            assert rows.ids[begin : begin + len(answer)].tolist() == answer
