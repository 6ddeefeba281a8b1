"""Creates the seeded demo model: a small untrained Qwen3 with the shipped tokenizer, as a transformers folder.

A constant direction in the residual stream acts as an output bias, so that the model generates English-looking
words in UTF-8 and ends its turns after some dozens of tokens. Only numpy and safetensors are needed: torch and
transformers are not imported.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import Conflict
from core.serving.tokenizer import (
    ASSETS,
    END_OF_TEXT,
    END_OF_TURN,
    TEMPLATE_FILE,
    TOKENIZER_FILE,
    ChatTokenizer,
    load_tokenizer,
)

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
SEED_KEY = "claw_studio_seed"

N_LAYERS = 4
HIDDEN = 128
INTERMEDIATE = 384
N_HEADS = 4
N_KV_HEADS = 2
HEAD_DIM = 32
CONTEXT_LENGTH = 131_072

BIAS_SIZE = 3.0
"""Value of every embedding's first component; no layer writes to that component."""
LOGIT_STD = 1.3
"""Standard deviation of the context-dependent part of the logits."""
END_LOGIT, WORD_LOGIT, REST_LOGIT, NEVER_LOGIT = 6.0, 0.0, -3.0, -10.0


def make_model(directory: Path, *, seed: int = 0) -> Path:
    """Write the seeded model to ``directory`` unless it exists. The same seed gives the same bytes.

    Raises:
        Conflict: the folder has a seeded model of another seed.
    """
    config_path, weights_path = directory / CONFIG_FILE, directory / WEIGHTS_FILE
    if config_path.exists() and weights_path.exists():
        known_seed = json.loads(config_path.read_text(encoding="utf-8")).get(SEED_KEY, seed)
        if known_seed != seed:
            raise Conflict(
                f"{directory} holds the model of seed {known_seed}",
                field="seed",
                hint=f"use seed={known_seed} or another folder",
            )
        return directory
    from safetensors.numpy import save_file

    tokenizer = load_tokenizer()
    directory.mkdir(parents=True, exist_ok=True)
    for name in (TOKENIZER_FILE, "tokenizer_config.json", TEMPLATE_FILE):
        shutil.copyfile(ASSETS / name, directory / name)
    ends = {"eos_token_id": list(tokenizer.end_ids), "pad_token_id": tokenizer.token_id(END_OF_TEXT)}
    (directory / "generation_config.json").write_text(json.dumps({**ends, "do_sample": True}, indent=2))
    temporary = weights_path.with_suffix(".tmp")
    save_file(_weights(tokenizer, seed), temporary, metadata={"format": "pt"})
    temporary.replace(weights_path)
    config_path.write_text(json.dumps(_config(tokenizer, seed), indent=2), encoding="utf-8")
    return directory


def _config(tokenizer: ChatTokenizer, seed: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": tokenizer.n_vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS,
        "num_key_value_heads": N_KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "initializer_range": 0.02,
        "dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_id(END_OF_TURN),
        "pad_token_id": tokenizer.token_id(END_OF_TEXT),
        SEED_KEY: seed,
    }


def _weights(tokenizer: ChatTokenizer, seed: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int, std: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        return rng.normal(0.0, std, shape).astype(np.float32)

    embedding = normal(tokenizer.n_vocab, HIDDEN, std=1.0)
    embedding[:, 0] = BIAS_SIZE
    head = normal(tokenizer.n_vocab, HIDDEN, std=LOGIT_STD / HIDDEN**0.5)
    head[tokenizer.token_id(END_OF_TURN)] = 0.0
    head[:, 0] = _prior(tokenizer) / BIAS_SIZE
    ones = np.ones(HIDDEN, dtype=np.float32)
    weights = {"model.embed_tokens.weight": embedding, "lm_head.weight": head, "model.norm.weight": ones}
    inner, std = N_HEADS * HEAD_DIM, HIDDEN**-0.5
    for layer in range(N_LAYERS):
        to_stream = normal(HIDDEN, inner, std=std), normal(HIDDEN, INTERMEDIATE, std=INTERMEDIATE**-0.5)
        for matrix in to_stream:
            matrix[0] = 0.0
        parts = {
            "self_attn.q_proj": normal(inner, HIDDEN, std=std),
            "self_attn.k_proj": normal(N_KV_HEADS * HEAD_DIM, HIDDEN, std=std),
            "self_attn.v_proj": normal(N_KV_HEADS * HEAD_DIM, HIDDEN, std=std),
            "self_attn.o_proj": to_stream[0],
            "self_attn.q_norm": np.ones(HEAD_DIM, dtype=np.float32),
            "self_attn.k_norm": np.ones(HEAD_DIM, dtype=np.float32),
            "mlp.gate_proj": normal(INTERMEDIATE, HIDDEN, std=std),
            "mlp.up_proj": normal(INTERMEDIATE, HIDDEN, std=std),
            "mlp.down_proj": to_stream[1],
            "input_layernorm": ones.copy(),
            "post_attention_layernorm": ones.copy(),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": value for name, value in parts.items()}
    return weights


def _prior(tokenizer: ChatTokenizer) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Mean logit of each token, float32 [n_vocab]: high for words, very low for partial characters and marks."""
    prior = np.full(tokenizer.n_vocab, REST_LOGIT, dtype=np.float32)
    for i, spelled in enumerate(tokenizer.token_bytes):
        text = spelled.decode("utf-8", errors="replace")
        if not text.isascii() or text.startswith("<"):
            prior[i] = NEVER_LOGIT
        elif text.startswith(" ") and text[1:].isalpha() and text[1:].islower() and len(text) > 2:
            prior[i] = WORD_LOGIT
    prior[tokenizer.token_id(END_OF_TURN)] = END_LOGIT
    return prior
