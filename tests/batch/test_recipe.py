from __future__ import annotations

import pytest

from core.batch.recipe import Recipe, parse_recipe
from core.errors import InvalidInput
from tests.batch.keeping_all import SFT_ALL


def test_defaults():
    recipe = parse_recipe(None)
    assert (recipe.algorithm, recipe.channel, recipe.token_budget) == ("grpo", "train", 32768)
    assert recipe.n_rollouts is recipe.batch_size is recipe.max_staleness is None
    assert recipe.trusted_sources == {"engine", "logprobs", "whitebox"}
    assert "retokenized" in parse_recipe(SFT_ALL).trusted_sources
    assert "none" not in parse_recipe(SFT_ALL).trusted_sources
    assert parse_recipe({"token_sources": ["engine"]}).trusted_sources == {"engine"}


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"algorithm": "ppo"}, "recipe.algorithm"),
        ({"n_rollout": 4}, "recipe.n_rollout"),
        ({"n_rollouts": 0}, "recipe.n_rollouts"),
        ({"n_rollouts": 1}, "recipe.n_rollouts"),
        ({"batch_size": "many"}, "recipe.batch_size"),
        ({"max_staleness": -1}, "recipe.max_staleness"),
        ({"token_budget": 0}, "recipe.token_budget"),
        ({"token_sources": ["guess"]}, "recipe.token_sources.0"),
        ({"options": {"gamma": 1.0}}, "recipe.options.gamma"),
        ({"algorithm": "sft", "options": {"best_of": 0}}, "recipe.options.best_of"),
    ],
)
def test_mistakes_name_their_field(data, field):
    with pytest.raises(InvalidInput) as caught:
        parse_recipe(data)
    assert caught.value.field == field
    assert caught.value.http_status == 422


def test_json_is_complete_and_reads_back():
    recipe = parse_recipe({"algorithm": "sft", "options": {"best_of": 2}, "token_sources": ["bytes"]})
    body = recipe.to_json()
    assert body["options"] == {"min_reward": 0.5, "best_of": 2}
    assert parse_recipe(body).to_json() == body
    assert parse_recipe({"n_rollouts": 1, "options": {"singleton": "zero"}}).n_rollouts == 1
    later = {"view": "mine", "dataset": "v1", "drop_dead_leaves": True, "drop_compacted": True, "max_leaves": 2}
    named = parse_recipe({**body, **later}).to_json()
    assert set(named) == set(Recipe.model_fields) == {*body, *later}
