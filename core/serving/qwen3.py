"""Qwen3's forward pass over a ragged batch with a key-value cache per sequence, float32 on the CPU.

Linear layers run over the concatenated new tokens of all sequences (whole prompts, parts of prompts, single tokens);
attention runs sequence by sequence. There is no padding. Other sequences in the batch affect a sequence's results
only by the rounding of matrix products.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from core.errors import EngineError

INDEX_FILE = "model.safetensors.index.json"
WEIGHTS_FILE = "model.safetensors"
FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class Qwen3Config:
    """The values of ``config.json`` that the forward pass uses."""

    n_vocab: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context_length: int
    eps: float
    rope_theta: float
    tied: bool

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read ``config.json``.

        Raises:
            EngineError: the config can't be read, or the architecture is not supported.
        """
        try:
            raw: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EngineError(f"no model in {directory}: {error}", field="path") from error
        rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
        plain = (
            raw.get("model_type") == "qwen3"
            and not raw.get("attention_bias")
            and not raw.get("use_sliding_window")
            and rope.get("rope_type", "default") == "default"
            and raw.get("hidden_act", "silu") == "silu"
        )
        if not plain:
            raise EngineError(
                f"{directory}: the local engine does not support this {raw.get('model_type')!r} model or its options",
                field="path",
                hint="dense Qwen3 without sliding window or rope scaling; serve others with vLLM or SGLang",
            )
        n_heads = raw["num_attention_heads"]
        return cls(
            n_vocab=raw["vocab_size"],
            n_layers=raw["num_hidden_layers"],
            n_heads=n_heads,
            n_kv_heads=raw.get("num_key_value_heads") or n_heads,
            head_dim=raw.get("head_dim") or raw["hidden_size"] // n_heads,
            context_length=raw["max_position_embeddings"],
            eps=raw.get("rms_norm_eps", 1e-6),
            rope_theta=rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0,
            tied=bool(raw.get("tie_word_embeddings")),
        )


class KVCache:
    """Keys and values of one sequence, per layer float32 [n_kv_heads, capacity, head_dim]; ``length`` are used."""

    def __init__(self, config: Qwen3Config) -> None:
        self.length = 0
        self._config = config
        self._capacity = 0
        self._layers: list[tuple[Any, Any]] = []

    def reserve(self, n_tokens: int) -> None:
        """Ensure capacity for ``n_tokens`` in total. Capacity doubles, so that appending takes linear time overall."""
        if n_tokens <= self._capacity:
            return
        import torch

        capacity = max(n_tokens, 2 * self._capacity, FIRST_CAPACITY)
        shape = (self._config.n_kv_heads, capacity, self._config.head_dim)
        grown = [(torch.empty(shape), torch.empty(shape)) for _ in range(self._config.n_layers)]
        for (old_k, old_v), (new_k, new_v) in zip(self._layers, grown, strict=False):
            new_k[:, : self.length] = old_k[:, : self.length]
            new_v[:, : self.length] = old_v[:, : self.length]
        self._layers, self._capacity = grown, capacity

    def put(self, layer: int, keys: Any, values: Any) -> tuple[Any, Any]:
        """Append keys and values ``[n, n_kv_heads, head_dim]``; returns all ``[n_kv_heads, length + n, head_dim]``."""
        end = self.length + keys.shape[0]
        all_keys, all_values = self._layers[layer]
        all_keys[:, self.length : end] = keys.transpose(0, 1)
        all_values[:, self.length : end] = values.transpose(0, 1)
        return all_keys[:, :end], all_values[:, :end]

    def clone(self) -> KVCache:
        """An independent copy."""
        copy = KVCache(self._config)
        copy.reserve(self.length + 1)
        copy.length = self.length
        for (from_k, from_v), (to_k, to_v) in zip(self._layers, copy._layers, strict=True):
            to_k[:, : self.length] = from_k[:, : self.length]
            to_v[:, : self.length] = from_v[:, : self.length]
        return copy


class Qwen3:
    """Weights and the forward pass."""

    def __init__(self, config: Qwen3Config, weights: dict[str, Any]) -> None:
        import torch

        self.config = config
        self._weights = weights
        self._head = weights["model.embed_tokens.weight" if config.tied else "lm_head.weight"]
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self._inverse_frequency = 1.0 / config.rope_theta**exponent

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read a transformers folder, one safetensors file or several.

        Raises:
            EngineError: files are missing or do not fit the config.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        config = Qwen3Config.load(directory)
        weights: dict[str, Any] = {}
        try:
            index = directory / INDEX_FILE
            names = {WEIGHTS_FILE}
            if index.exists():
                names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            for name in sorted(names):
                weights |= {k: v.float().contiguous() for k, v in load_file(directory / name).items()}
            return cls(config, weights)
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise EngineError(f"could not read the weights in {directory}: {error}", field="path") from error

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence."""
        return KVCache(self.config)

    def forward(self, new_ids: Sequence[Sequence[int]], caches: Sequence[KVCache]) -> Any:
        """Extend each sequence by its new ids and return the logits after its last one: float32 [n_sequences, n_vocab].

        Args: as ``read``.
        """
        states = self.read(new_ids, caches)
        ends = [sum(map(len, new_ids[: n + 1])) - 1 for n in range(len(new_ids))]
        return self.logits(states[ends])

    def logits(self, states: Any) -> Any:
        """Next-token logits of each state: float32 [n, hidden] to float32 [n, n_vocab]."""
        from torch.nn.functional import linear

        return linear(self._norm(states, self._weights["model.norm.weight"]), self._head)

    def read(self, new_ids: Sequence[Sequence[int]], caches: Sequence[KVCache]) -> Any:
        """Extend each sequence by its new ids.

        Args:
            new_ids: at least one new token id per sequence.
            caches: the sequences so far; extended in place.

        Returns:
            The last layer's states, concatenated: float32 [n_new_ids, hidden].
        """
        import torch
        from torch.nn.functional import linear, silu

        w = self._weights
        flat = torch.tensor([i for ids in new_ids for i in ids], dtype=torch.int64)
        spans, start = [], 0
        for ids, cache in zip(new_ids, caches, strict=True):
            spans.append((start, start + len(ids), cache))
            cache.reserve(cache.length + len(ids))
            start += len(ids)
        positions = torch.cat([torch.arange(c.length, c.length + e - s) for s, e, c in spans])
        cos, sin = self._rope(positions)
        x = w["model.embed_tokens.weight"][flat]
        for layer in range(self.config.n_layers):
            p = f"model.layers.{layer}."
            h = self._norm(x, w[p + "input_layernorm.weight"])
            x = x + linear(self._attend(layer, h, spans, cos, sin), w[p + "self_attn.o_proj.weight"])
            h = self._norm(x, w[p + "post_attention_layernorm.weight"])
            gated = silu(linear(h, w[p + "mlp.gate_proj.weight"])) * linear(h, w[p + "mlp.up_proj.weight"])
            x = x + linear(gated, w[p + "mlp.down_proj.weight"])
        for s, e, cache in spans:
            cache.length += e - s
        return x

    def _attend(self, layer: int, h: Any, spans: list[tuple[int, int, KVCache]], cos: Any, sin: Any) -> Any:
        import torch
        from torch.nn.functional import linear, scaled_dot_product_attention

        c, w, p = self.config, self._weights, f"model.layers.{layer}.self_attn."
        n = h.shape[0]
        q = linear(h, w[p + "q_proj.weight"]).view(n, c.n_heads, c.head_dim)
        k = linear(h, w[p + "k_proj.weight"]).view(n, c.n_kv_heads, c.head_dim)
        v = linear(h, w[p + "v_proj.weight"]).view(n, c.n_kv_heads, c.head_dim)
        q = _rotate(self._norm(q, w[p + "q_norm.weight"]), cos, sin)
        k = _rotate(self._norm(k, w[p + "k_norm.weight"]), cos, sin)
        out = torch.empty_like(q)
        n_shared = c.n_heads // c.n_kv_heads
        for s, e, cache in spans:
            keys, values = cache.put(layer, k[s:e], v[s:e])
            if e - s == 1:
                # Query heads that share a key head are passed as query positions, so that keys are not repeated.
                queries = q[s].view(1, c.n_kv_heads, n_shared, c.head_dim)
                one = scaled_dot_product_attention(queries, keys[None], values[None])
                out[s] = one.view(c.n_heads, c.head_dim)
                continue
            mask = None
            if cache.length:
                mask = torch.ones(e - s, keys.shape[1], dtype=torch.bool).tril(cache.length)
            many = scaled_dot_product_attention(
                q[s:e].transpose(0, 1)[None],
                keys.repeat_interleave(n_shared, 0)[None],
                values.repeat_interleave(n_shared, 0)[None],
                attn_mask=mask,
                is_causal=mask is None,
            )
            out[s:e] = many[0].transpose(0, 1)
        return out.view(n, c.n_heads * c.head_dim)

    def _norm(self, x: Any, weight: Any) -> Any:
        import torch

        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.eps))

    def _rope(self, positions: Any) -> tuple[Any, Any]:
        import torch

        angles = positions[:, None].float() * self._inverse_frequency
        both = torch.cat((angles, angles), dim=-1)[:, None]
        return both.cos(), both.sin()


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
