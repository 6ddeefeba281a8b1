"""The attention mask of a packed row: as blocks for the canvas, as a plotly heat map for small rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from core.tree.build import PackedTree
from core.tree.mask import mask_blocks
from core.tree.nodes import TreeNodes
from studio.charts.theme import SEQUENTIAL, figure

HEATMAP_TOKENS = 512
"""Rows up to this many tokens are drawn as a heat map, one cell per pair."""
HEATMAP_CELLS = 256


def mask_nodes(tree: PackedTree, nodes: TreeNodes) -> dict[str, NDArray[Any]]:
    """Blocks of ``components.mask_canvas``: own tokens ``[start, stop)`` and the subtree's end, int32 [N]."""
    return {
        "start": nodes.start,
        "stop": nodes.start + nodes.length,
        "end": tree.end[nodes.start] if len(nodes) else np.zeros(0, dtype=np.int32),
        "n_owners": nodes.n_owners,
    }


def mask_heatmap(tree: PackedTree, *, resolution: int = HEATMAP_CELLS, height: int = 460) -> go.Figure:
    """Share of visible pairs per cell; exact to the token up to ``resolution`` tokens."""
    image = mask_blocks(tree.end, 0, tree.n_packed, 0, tree.n_packed, resolution)
    trace = go.Heatmap(
        z=image.coverage,
        x=(image.k_edges[:-1] + image.k_edges[1:] - 1) / 2,
        y=(image.q_edges[:-1] + image.q_edges[1:] - 1) / 2,
        zmin=0,
        zmax=1,
        colorscale=SEQUENTIAL,
        showscale=False,
        hovertemplate="query %{y:.0f}<br>key %{x:.0f}<br>visible %{z:.0%}<extra></extra>",
    )
    chart = figure(trace, height=height, xaxis_title="key", yaxis_title="query")
    chart.update_yaxes(autorange="reversed", showgrid=False, scaleanchor="x", constrain="domain")
    chart.update_xaxes(constrain="domain")
    return chart
