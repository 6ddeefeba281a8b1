"""A recipe or a fetch that names a dataset version or a saved view gets exactly that, whatever is labelled later."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from core.batch.arrays import SCHEMA, step_tables
from core.batch.datasets import freeze_version, version_plan
from core.batch.leases import Fetch, Leases
from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.batch.redact import texts_of
from core.errors import InvalidInput, NotFound
from core.export import export
from core.export.base import source_of
from core.pool import Pool
from core.pool.redaction.rules import parse_redaction
from core.serving.tokenizer import load_tokenizer
from core.types import Annotation, Step, View
from tests.batch.keeping_all import SFT_ALL

from .conftest import T0, done, rollout

NOW = T0 + 1000
GRPO = {"algorithm": "grpo", "max_uses": None}
TRAIN = View({"channel": "train"})
KEY = "sk-abcdefghijklmnopqrstuvwx"


@pytest.fixture
def pool() -> Iterator[Pool]:
    opened = Pool.open(":memory:", clock=lambda: NOW)
    for place, prompt in enumerate("AB"):
        uids = [f"{prompt}{k}" for k in range(2)]
        opened.steps.append(
            [step for k, uid in enumerate(uids) for step in rollout(uid, prompt, at=100 * place + k)],
            completions=[event for k, uid in enumerate(uids) for event in done(uid, reward=float(k))],
        )
    opened.views.save("only A", View({"prompt_uid": "A"}))
    yield opened
    opened.close()


@pytest.fixture
def leases(pool: Pool) -> Leases:
    number = itertools.count(1)
    return Leases(pool, lambda: NOW, lambda: f"b{next(number)}", lambda _: 7)


def shake(pool: Pool) -> None:
    """Everything that can be otherwise later."""
    label = {"author": "kim", "source": "human"}
    pool.labels.annotate_view(View(), "trajectory", "reward", -3.0, **label)
    pool.labels.annotate_view(View({"prompt_uid": "A"}), "step", "trainable", False, **label)
    pool.labels.annotate([Annotation("quality", "bad", "kim", "human", NOW, trajectory_uid="B0")])
    pool.steps.append(rollout("A9", "A", at=900), completions=done("A9", reward=9.0))


def test_a_recipe_that_names_a_version_is_about_what_was_frozen(pool: Pool, leases: Leases, tmp_path) -> None:
    recipe = parse_recipe({**GRPO, "view": "only A"})
    version = freeze_version(pool, "v1", View(), recipe, author="kim")
    assert version["view"]["filters"] == {"saved_view": "only A"} and version["n_groups"] == 1
    as_frozen = plan(pool, View({"prompt_uid": "A"}), parse_recipe(GRPO)).steps.to_pylist()
    named = parse_recipe({**GRPO, "dataset": "v1"})
    before = plan(pool, View(), named)
    shake(pool)
    pool.views.save("only A", View({"prompt_uid": "B"}))
    after = plan(pool, View(), named)
    assert after.steps.to_pylist() == before.steps.to_pylist() == as_frozen
    assert after.hash == before.hash == version_plan(pool, "v1", GRPO).hash
    assert after.dataset_version is not None and after.dataset_version["content_hash"] == version["content_hash"]
    assert plan(pool, View({"prompt_uid": "A"}), parse_recipe(GRPO)).steps.to_pylist() != as_frozen
    one, two = (export(made, pool, "trl_sft", tmp_path / name) for name, made in (("a", before), ("b", after)))
    assert one.manifest["sha256"] == two.manifest["sha256"]

    leased = [
        leases.fetch(Fetch("t", dataset="v1", shared=True)),
        leases.fetch(Fetch("u", recipe=named.to_json(), shared=True)),
    ]
    for each in leased:
        assert each.batch is not None and each.plan.steps.to_pylist() == as_frozen
        again = leases.plan_of(each.batch["batch_uid"])
        assert again.steps.to_pylist() == as_frozen and again.dataset_version == each.plan.dataset_version
    assert leased[0].chosen.recipe == parse_recipe({**version["recipe"], "dataset": "v1"}), "its own recipe"
    pool.recipes.save("from v1", named.to_json())
    pool.recipes.activate("train", "from v1", None, author="kim")
    assert leases.fetch(Fetch("w", shared=True)).plan.steps.to_pylist() == as_frozen


def test_what_others_hold_leaves_a_version_too(leases: Leases, pool: Pool) -> None:
    freeze_version(pool, "v1", View(), parse_recipe({"algorithm": "grpo"}), author="kim")
    first = leases.fetch(Fetch("a", dataset="v1", recipe={"algorithm": "grpo", "batch_size": 1}))
    second = leases.fetch(Fetch("b", dataset="v1", recipe={"algorithm": "grpo", "batch_size": 1}))
    assert [one.plan.groups[0].prompt_uid for one in (first, second)] == ["A", "B"]
    assert leases.fetch(Fetch("c", dataset="v1", recipe={"algorithm": "grpo", "batch_size": 1})).batch is None


def test_a_version_is_whole_and_there(pool: Pool) -> None:
    freeze_version(pool, "v1", TRAIN, parse_recipe(GRPO), author="kim")
    named = parse_recipe({**GRPO, "dataset": "v1"})
    assert plan(pool, TRAIN, named).hash == plan(pool, View(), named).hash, "the frozen view is no other"
    with pytest.raises(InvalidInput, match="as it was frozen"):
        plan(pool, View({"agent": "x"}), named)
    with pytest.raises(InvalidInput, match="as it was frozen"):
        plan(pool, View(), parse_recipe({**GRPO, "dataset": "v1", "view": "only A"}))
    with pytest.raises(NotFound):
        plan(pool, View(), parse_recipe({**GRPO, "dataset": "v2"}))
    with pytest.raises(InvalidInput, match="from the pool"):
        freeze_version(pool, "v2", View(), named, author="kim")


def test_a_recipe_s_saved_view_narrows_the_request_s(pool: Pool, leases: Leases) -> None:
    named = parse_recipe({**GRPO, "view": "only A"})
    assert {row["prompt_uid"] for row in plan(pool, View(), named).steps.to_pylist()} == {"A"}
    made = plan(pool, View({"trajectory_uid": ["A0", "A1", "B0"], "saved_view": "only A"}), named)
    assert {row["trajectory_uid"] for row in made.steps.to_pylist()} == {"A0", "A1"}
    assert plan(pool, made.view, made.recipe).hash == made.hash
    assert "view" not in parse_recipe(GRPO).to_json() and "dataset" not in parse_recipe(GRPO).to_json()
    with pytest.raises(NotFound, match="nobody"):
        plan(pool, View(), parse_recipe({"view": "nobody"}))
    fetched = leases.fetch(Fetch("a", view_name="only A", recipe=GRPO))
    assert [group.prompt_uid for group in fetched.plan.groups] == ["A"]
    with pytest.raises(NotFound, match="nobody"):
        leases.fetch(Fetch("a", view_name="nobody", recipe=GRPO))


def test_a_fetched_version_is_redacted(pool: Pool, leases: Leases) -> None:
    tokenizer = load_tokenizer(None)
    messages = [{"role": "user", "content": f"my key is {KEY}"}]
    message = {"role": "assistant", "content": f"I use {KEY} now"}
    prompt, response = tokenizer.encode(messages[0]["content"]), tokenizer.encode(message["content"])
    pool.steps.append(
        [
            Step(
                "k.0", "k", "K", 0, NOW, prompt_ids=prompt, response_ids=response, messages=messages, channel="train",
                response_message=message, response_logprobs=[-1.0] * len(response), token_source="engine",
                tokenizer_hash=tokenizer.hash,
            )
        ],
        completions=done("k", reward=1.0),
    )  # fmt: skip
    sft = parse_recipe(SFT_ALL)
    view = View({"prompt_uid": "K"})
    freeze_version(
        pool, "masked", view, sft, author="kim", redaction=parse_redaction({"rules": ["secrets"]}), texts=texts_of(None)
    )
    leased = leases.fetch(Fetch("a", dataset="masked"))
    assert leased.batch is not None
    thawed = leases.plan_of(leased.batch["batch_uid"])
    for made in (leased.plan, thawed):
        (table,) = step_tables(made, source_of(made, pool))
        assert table.schema == SCHEMA
        (row,) = table.to_pylist()
        assert KEY not in tokenizer.decode(row["prompt_ids"]) and KEY not in tokenizer.decode(row["response_ids"])
        changed = np.array(row["response_ids"]) != np.array(response)
        assert changed.any() and not changed.all()
        assert np.array_equal(np.array(row["response_mask"]) == 0, changed)
