"""The real SFTTrainer takes a step on our file, and its loss is the loss over our labels."""

from __future__ import annotations

import random

import pytest

from core.batch.plan import plan
from core.batch.recipe import parse_recipe
from core.export import export
from core.serving.model import make_model
from core.types import View
from tests.batch.keeping_all import SFT_ALL

from .conftest import conversation, done


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"), seed=3)


@pytest.mark.parametrize("merge", ["step", "trajectory"])
def test_sft_trainer_honours_the_labels(pool, tmp_path, model_dir, merge):
    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    draw = random.Random(1)

    def ids(n):
        return [draw.randrange(300, 900) for _ in range(n)]

    pool.steps.append(
        conversation("a", "A", [(ids(1100), ids(7)), (ids(5), ids(9))]) + conversation("b", "A", [(ids(12), ids(4))]),
        completions=done("a", "b", reward=1.0),
    )
    result = export(
        plan(pool, View(), parse_recipe(SFT_ALL)),
        pool,
        "trl_sft",
        tmp_path,
        merge=merge,
    )
    data = load_dataset("parquet", data_files=str(result.path), split="train", cache_dir=str(tmp_path / "hf"))
    assert len(data) == {"step": 3, "trajectory": 2}[merge]
    assert max(len(row["input_ids"]) for row in data) > 1024, "longer than TRL's default cut"

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    total, count = 0.0, 0
    with torch.no_grad():
        for row in data:
            scores = torch.log_softmax(model(input_ids=torch.tensor([row["input_ids"]])).logits[0], dim=-1)
            for at, label in enumerate(row["labels"]):
                if label != -100:
                    total -= scores[at - 1, label].item()
                    count += 1
    assert count == result.manifest["n_loss_tokens"] == 20

    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = SFTConfig(
        output_dir=str(tmp_path / "run"),
        max_steps=1,
        per_device_train_batch_size=len(data),
        learning_rate=1e-3,
        max_length=None,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = SFTTrainer(
        model=model,
        args=config,
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(model_dir),
    )
    outcome = trainer.train()
    assert outcome.training_loss == pytest.approx(total / count, rel=1e-3)
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())
