"""Tree attention: runs an unmodified transformers causal LM on a packed row, with three implementations.

    model = AutoModelForCausalLM.from_pretrained(...)
    use_tree_attention(model, "cascade")
    hidden_TH = packed_hidden(model, row)

``cascade`` (CPU) and ``blocks`` (any device) are registered as transformers attention functions. ``flex`` passes a
BlockMask to FlexAttention (CUDA; on the CPU, torch 2.13 has only its forward pass). Rotary positions are the row's
``position_ids``, so every token is rotated as in its original sequence. Gradient checkpointing is supported. Calls
without a row (evaluation, generation) use ``sdpa``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from core.errors import InvalidInput
from core.tree.build import PackedTree, concatenate
from core.tree.cascade import cascade_attention, pieces
from core.tree.sequences import Int32

QUERY_BLOCK = 512
FLEX_BLOCK = 128
# Their rotation depends on the longest sequence of a batch, which packing changes.
LENGTH_DEPENDENT_ROPES = {"dynamic", "longrope"}


def mask_mod(end: Any) -> Callable[[Any, Any, Any, Any], Any]:
    """FlexAttention's mask function over ``end``, an int tensor [T]."""

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query < end[key])

    return visible


def block_mask(end: Int32, *, block: int = FLEX_BLOCK, device: str = "cpu") -> Any:
    """FlexAttention's BlockMask of a row, without a T × T mask.

    A block of keys before a block of queries is visible iff its largest ``end`` is beyond the first query, and fully
    visible iff its smallest ``end`` is beyond the last. Diagonal blocks are always partial. The result equals torch's
    ``create_block_mask``, with T² / block² instead of T² memory.

    Args:
        end: int32 [T].
        block: tokens per block, both ways.
        device: of the mask.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    length = len(end)
    n_blocks = -(-length // block)
    edges = np.arange(0, length, block)
    first_query = torch.from_numpy(edges).to(device)
    least, greatest = (
        torch.from_numpy(reduce.reduceat(end, edges).astype(np.int64)).to(device) for reduce in (np.minimum, np.maximum)
    )
    number = torch.arange(n_blocks, device=device)
    below = number[None, :] < number[:, None]
    full = below & (least[None, :] >= first_query[:, None] + block)
    partial = (below & (greatest[None, :] > first_query[:, None]) & ~full) | (number[None, :] == number[:, None])
    if block == 1:
        full, partial = full | partial, torch.zeros_like(partial)

    def ordered(chosen: Any) -> tuple[Any, Any]:
        columns = chosen.to(torch.int32).argsort(dim=-1, descending=True, stable=True)
        return chosen.sum(-1).to(torch.int32)[None, None], columns.to(torch.int32)[None, None]

    return BlockMask.from_kv_blocks(
        *ordered(partial),
        *ordered(full),
        BLOCK_SIZE=block,
        mask_mod=mask_mod(torch.from_numpy(end.astype(np.int64)).to(device)),
        seq_lengths=(length, length),
    )


def blocked_attention(query: Any, key: Any, value: Any, end: Any, scale: float, block: int = QUERY_BLOCK) -> Any:
    """Scaled dot-product attention of a packed row, one block of queries at a time.

    For each block, the keys that are visible to one of its queries are gathered. The mask is recomputed in the backward
    pass, so memory is ``block × longest path``.

    Args:
        query: [1, heads, T, width].
        key, value: [1, kv heads, T, width].
        end: int64 tensor [T].
        scale: factor of the scores.
        block: queries at a time.

    Returns:
        [1, heads, T, width].
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    length = query.shape[2]
    everyone = torch.arange(length, device=query.device)

    def attend(start: int) -> Any:
        stop = min(start + block, length)
        seen = everyone[:stop][end[:stop] > start]
        mask = (seen[None, :] <= everyone[start:stop, None]) & (everyone[start:stop, None] < end[seen][None, :])
        return torch.nn.functional.scaled_dot_product_attention(
            query[:, :, start:stop],
            key.index_select(2, seen),
            value.index_select(2, seen),
            attn_mask=mask,
            scale=scale,
            enable_gqa=key.shape[1] != query.shape[1],
        )

    return torch.cat([checkpoint(attend, start, use_reentrant=False) for start in range(0, length, block)], dim=2)


def _cascade(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
    if (table := options.pop("packed_row", None)) is None:
        return _plain(module, query, key, value, mask, **options)
    _refuse(options, module)
    return cascade_attention(query, key, value, table, _scale(query, options)).transpose(1, 2), None


def _blocks(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
    if (end := options.pop("packed_row", None)) is None:
        return _plain(module, query, key, value, mask, **options)
    _refuse(options, module)
    return blocked_attention(query, key, value, end, _scale(query, options)).transpose(1, 2).contiguous(), None


def _plain(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(module, query, key, value, mask, **options)


def _scale(query: Any, options: dict[str, Any]) -> float:
    scaling = options.get("scaling")
    return float(query.shape[-1] ** -0.5 if scaling is None else scaling)


def _refuse(options: dict[str, Any], module: Any) -> None:
    for name in ("sliding_window", "softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise InvalidInput(f"a layer uses {name}, which tree attention doesn't support", field=name)
    if options.get("dropout") and module.training:
        raise InvalidInput("tree attention doesn't support attention dropout", field="attention_dropout")


KINDS: dict[str, str] = {"cascade": "tree_cascade", "blocks": "tree_blocks", "flex": "flex_attention"}
"""Name -> transformers' name of the attention implementation."""


def use_tree_attention(model: Any, kind: str = "cascade") -> None:
    """Make a transformers causal LM use tree attention for packed rows.

    The change is permanent, because the backward pass of a checkpointed layer runs its forward pass again.

    Raises:
        InvalidInput: the kind is unknown, or the model is not supported: sliding windows, soft caps, rotary embeddings
            that depend on the longest sequence of a batch.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if kind not in KINDS:
        raise InvalidInput(f"no tree attention {kind!r}", field="kind", hint=f"one of {', '.join(KINDS)}")
    config = model.config
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        raise InvalidInput("the model has layers without full attention", field="layer_types")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope in LENGTH_DEPENDENT_ROPES:
        raise InvalidInput(f"{rope} rotary embeddings depend on the longest sequence of a batch", field="rope_type")
    for name, attend in (("cascade", _cascade), ("blocks", _blocks)):
        AttentionInterface.register(KINDS[name], attend)
        AttentionMaskInterface.register(KINDS[name], sdpa_mask)
    model.set_attn_implementation(KINDS[kind])


def packed_inputs(model: Any, row: PackedTree) -> dict[str, Any]:
    """Arguments of the model's ``forward`` for one row, batch of one, on the model's device.

    Raises:
        InvalidInput: ``use_tree_attention`` wasn't called on the model.
    """
    import torch

    device = model.device
    inputs: dict[str, Any] = {
        "input_ids": torch.from_numpy(row.tokens.astype(np.int64)).to(device)[None],
        "position_ids": torch.from_numpy(row.position_ids.astype(np.int64)).to(device)[None],
        # A four-dimensional mask is passed on unchanged; otherwise transformers would build a T × T mask.
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),
        "use_cache": False,
    }
    implementation = model.config._attn_implementation
    if implementation == KINDS["cascade"]:
        inputs["packed_row"] = pieces(row)
    elif implementation == KINDS["blocks"]:
        inputs["packed_row"] = torch.from_numpy(row.end.astype(np.int64)).to(device)
    elif implementation == KINDS["flex"]:
        inputs["attention_mask"] = block_mask(row.end, device=str(device))
    else:
        raise InvalidInput(f"{implementation} is not a tree attention", hint="call use_tree_attention(model)")
    return inputs


def packed_hidden(model: Any, row: PackedTree) -> Any:
    """Last hidden states of a row, [T, hidden], for ``core.tree.scores``. No logits are computed."""
    return model.base_model(**packed_inputs(model, row)).last_hidden_state[0]


def padded_to_block(row: PackedTree, block: int = FLEX_BLOCK, pad_id: int = 0) -> PackedTree:
    """The row padded to a multiple of ``block``, so that kernels are compiled for few lengths."""
    return concatenate([row], pad_to=-(-row.n_packed // block) * block, pad_id=pad_id)
