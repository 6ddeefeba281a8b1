"""Exact tree attention on the CPU without mask or gather; its cost is proportional to the visible pairs.

Adjacent keys with the same end form a *piece* ``[start, stop)`` that is visible to ``[start, end)``: causally to its
own tokens, and fully to the queries ``[stop, end)``, which are contiguous in the depth-first layout. torch's flash
kernel is called twice per piece, on slices. The parts of each query are combined by their log-sum-exp. The kernel's
backward gets the combined output and log-sum-exp, so the gradient of each part is exact. (Ring attention uses the same
identity, Liu et al., arXiv 2310.01889.) Memory is O(T).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from core.tree.build import PackedTree
from core.tree.sequences import Int64


def pieces(row: PackedTree) -> Int64:
    """``start, stop, end`` of each run of keys with the same end, without padding: int64 [n, 3]."""
    end = row.end[: row.n_packed].astype(np.int64)
    start = np.flatnonzero(np.diff(end, prepend=-1))
    return np.stack([start, np.append(start[1:], row.n_packed)[: len(start)], end[start]], axis=1)


def cascade_attention(query: Any, key: Any, value: Any, table: Int64, scale: float) -> Any:
    """Attention of a packed row.

    Args:
        query: [1, heads, T, width], CPU; fp64, fp32, bf16 or fp16.
        key, value: [1, kv heads, T, width]; each serves ``heads / kv heads`` query heads, as in transformers.
        table: ``pieces`` of the row.
        scale: factor of the scores.

    Returns:
        [1, heads, T, width]; zero at padding.
    """
    return _function().apply(query, key, value, table, scale)


@cache
def _function() -> Any:
    """The autograd function, created at first use, so that torch is not imported before."""
    import torch

    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

    def grouped(states: Any, n_kv: int) -> Any:
        """[1, n_kv · g, T, d] as [g, n_kv, T, d], a view: query heads of one key head lie in the batch."""
        _, heads, length, width = states.shape
        return states[0].view(n_kv, heads // n_kv, length, width).transpose(0, 1)

    def parts(table: Int64) -> Any:
        """(queries, keys, causal) of every kernel call: slices."""
        for start, stop, end in table.tolist():
            yield slice(start, stop), slice(start, stop), True
            if end > stop:
                yield slice(stop, end), slice(start, stop), False

    class Cascade(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any, table: Int64, scale: float) -> Any:
            n_kv, wide = key.shape[1], torch.promote_types(query.dtype, torch.float32)
            q = grouped(query, n_kv)
            k, v = key.expand(len(q), -1, -1, -1), value.expand(len(q), -1, -1, -1)
            out = torch.zeros(1, query.shape[2], query.shape[1], query.shape[3], dtype=wide).transpose(1, 2)
            joined = grouped(out, n_kv)
            lse = torch.full((query.shape[2], len(q), n_kv), -torch.inf, dtype=wide).permute(1, 2, 0)
            for rows, cols, causal in parts(table):
                part, part_lse = flash(q[:, :, rows], k[:, :, cols], v[:, :, cols], 0.0, causal, scale=scale)
                total = torch.logaddexp(lse[:, :, rows], part_lse)
                joined[:, :, rows].mul_((lse[:, :, rows] - total).exp_()[..., None])
                joined[:, :, rows].addcmul_(part.to(wide), (part_lse - total).exp_()[..., None])
                lse[:, :, rows] = total
            out = out.to(query.dtype)
            ctx.save_for_backward(query, key, value, out, lse)
            ctx.table, ctx.scale = table, scale
            return out

        @staticmethod
        def backward(ctx: Any, grad_out: Any) -> tuple[Any, ...]:
            query, key, value, out, lse = ctx.saved_tensors
            n_kv = key.shape[1]
            q, o, g = (grouped(states, n_kv) for states in (query, out, grad_out))
            k, v = key.expand(len(q), -1, -1, -1), value.expand(len(q), -1, -1, -1)
            wide = lse.dtype
            grad_query = torch.zeros_like(query, dtype=wide)
            grad_q = grouped(grad_query, n_kv)
            grad_key, grad_value = (torch.zeros_like(states, dtype=wide) for states in (key, value))
            for rows, cols, causal in parts(ctx.table):
                dq, dk, dv = flash_backward(
                    g[:, :, rows],
                    q[:, :, rows],
                    k[:, :, cols],
                    v[:, :, cols],
                    o[:, :, rows],
                    lse[:, :, rows],
                    0.0,
                    causal,
                    scale=ctx.scale,
                )
                grad_q[:, :, rows] += dq
                grad_key[0, :, cols] += dk.sum(0)
                grad_value[0, :, cols] += dv.sum(0)
            return (
                grad_query.to(query.dtype),
                grad_key.to(key.dtype),
                grad_value.to(value.dtype),
                None,
                None,
            )

    return Cascade
