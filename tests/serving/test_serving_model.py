from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from core.errors import Conflict
from core.serving.model import CONTEXT_LENGTH, make_model
from core.serving.tokenizer import tokenizer_hash


def test_same_seed_same_bytes_other_seed_other_weights(tmp_path: Path, model_dir: Path):
    again = make_model(tmp_path / "again", seed=0)
    other = make_model(tmp_path / "other", seed=1)
    read = lambda d: (d / "model.safetensors").read_bytes()  # noqa: E731
    assert read(again) == read(model_dir) != read(other)


def test_an_existing_model_is_left_alone(tmp_path: Path):
    directory = make_model(tmp_path / "m", seed=3)
    before = {f.name: f.stat().st_mtime_ns for f in directory.iterdir()}
    make_model(directory, seed=3)
    assert {f.name: f.stat().st_mtime_ns for f in directory.iterdir()} == before
    with pytest.raises(Conflict, match="seed 3"):
        make_model(directory, seed=4)
    config = json.loads((directory / "config.json").read_text())
    del config["claw_studio_seed"]
    (directory / "config.json").write_text(json.dumps(config))
    make_model(directory, seed=4)
    assert "claw_studio_seed" not in json.loads((directory / "config.json").read_text())


def test_making_it_needs_no_torch(tmp_path: Path):
    code = (
        "import sys, pathlib; from core.serving.model import make_model;"
        f"make_model(pathlib.Path({str(tmp_path / 'm')!r}));"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_transformers_loads_all_of_it(model_dir: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, info = AutoModelForCausalLM.from_pretrained(model_dir, output_loading_info=True)
    assert not any(info.values()), info
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.num_parameters() < 5_000_000
    assert model.config.max_position_embeddings == CONTEXT_LENGTH >= 32_768
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.eos_token_id in model.generation_config.eos_token_id
    assert tokenizer_hash(model_dir) == tokenizer_hash()


def test_the_engine_computes_what_transformers_computes(model_dir: Path, tmp_path: Path):
    """Whole prompts, chunks, single tokens, ragged neighbours; and weights that transformers saved itself."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from core.serving.qwen3 import Qwen3

    torch.manual_seed(0)
    tied = Qwen3Config(
        vocab_size=311,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 5e5},
        initializer_range=0.2,
    )
    Qwen3ForCausalLM(tied).save_pretrained(tmp_path / "tied", max_shard_size="100KB")
    assert (tmp_path / "tied" / "model.safetensors.index.json").exists()
    for directory, n_vocab in ((model_dir, 4096), (tmp_path / "tied", 311)):
        reference = Qwen3ForCausalLM.from_pretrained(directory).eval()
        engine = Qwen3.load(directory)
        ids = torch.randint(0, n_vocab, (400,))
        with torch.inference_mode():
            logits = reference(ids[None]).logits[0]
            a, b = engine.new_cache(), engine.new_cache()
            feeds = [([0, 120], [0, 1]), ([120, 300], [1, 90]), ([300, 301], [90, 91]), ([301, 302], [91, 333])]
            for (a0, a1), (b0, b1) in feeds:
                out = engine.forward([ids[a0:a1].tolist(), ids[b0:b1].tolist()], [a, b])
                torch.testing.assert_close(out, logits[[a1 - 1, b1 - 1]], atol=5e-5, rtol=1e-5)
            copy = a.clone()
            one = engine.forward([ids[302:303].tolist()], [copy])
            torch.testing.assert_close(one, logits[[302]], atol=5e-5, rtol=1e-5)
            assert (a.length, copy.length) == (302, 303)
