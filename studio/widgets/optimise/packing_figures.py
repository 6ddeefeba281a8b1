"""A plan's tokens, attention and rows before and after sharing prefixes: exact, or estimated from a sample."""

from __future__ import annotations

from dataclasses import dataclass

from core.batch.plan import Plan
from core.tree.balance import CostModel
from studio import kit
from studio.widgets.plans.packing import PackingSample

LAYER = CostModel()


def exact_figures(plan: Plan) -> None:
    """Tokens and attention before and after sharing."""
    layout = plan.layout
    totals = PackingTotals(
        tokens=layout.n_tokens,
        once=layout.n_packed_tokens,
        separate=layout.attention_pairs_separate,
        pairs=layout.attention_pairs,
        n_rows=len(layout.rows),
    )
    draw_figures(plan, totals, "")


def estimated_figures(plan: Plan, part: PackingSample) -> None:
    """The same figures for a plan that is not packed: what lengths do not determine is scaled up from a sample."""
    layout = part.layout
    totals = PackingTotals(
        tokens=plan.counts["n_tokens"],
        once=layout.n_packed_tokens * part.scale,
        separate=part.separate,
        pairs=layout.attention_pairs * part.separate / max(layout.attention_pairs_separate, 1),
        n_rows=max(round(len(layout.rows) * part.scale), 1),
    )
    draw_figures(plan, totals, "≈ ")


@dataclass(frozen=True, slots=True)
class PackingTotals:
    """Tokens before and after sharing, visible pairs before and after, and packed rows."""

    tokens: int
    once: float
    separate: int
    pairs: float
    n_rows: int


def draw_figures(plan: Plan, totals: PackingTotals, near: str) -> None:
    """Draw the row of figures; ``near`` is put before each estimated one."""
    tokens, once, separate, pairs = totals.tokens, totals.once, totals.separate, totals.pairs
    budget = plan.recipe.token_budget
    capacity = totals.n_rows * budget
    padding = capacity - once
    rows = kit.count(totals.n_rows) if not near else kit.compact(totals.n_rows)
    kit.figures(
        [
            kit.Figure("Steps", kit.count(len(plan.steps)), sub=f"{kit.count(plan.n_groups)} groups", help="step"),
            kit.Figure("Tokens before", kit.compact(tokens), help="Prompt and response of every step, separately"),
            kit.Figure(
                "Tokens after", near + kit.compact(once), sub=f"{kit.compact(tokens - once)} saved", tone="good"
            ),
            kit.Figure("Token ratio", near + kit.number(once / tokens if tokens else None), help="token ratio"),
            kit.Figure(
                "Attention pairs",
                near + kit.compact(pairs),
                sub=f"{kit.percent(pairs, separate)} of {kit.compact(separate)}",
                help="Visible (query, key) pairs, packed and separate: the attention work",
            ),
            kit.Figure(
                "Attention FLOPs",
                near + kit.compact(flops_of(0, pairs)),
                sub=f"from {kit.compact(flops_of(0, separate))} a layer",
                help="Forward and backward of one layer of width 4096: 12 x 4096 per visible pair (PaLM, appendix B)",
            ),
            kit.Figure(
                "Speed-up",
                "—" if not tokens else f"{near or '≤ '}{flops_of(tokens, separate) / flops_of(once, pairs):.2f} ×",
                sub="at most" if near else "of an update",
                tone="good",
                help="Bound on the training step's speed-up: FLOPs of separate sequences over the packed rows', "
                "weights (6 per parameter and token, Kaplan et al.) and attention, of a layer of width 4096",
            ),
            kit.Figure("Rows", near + rows, sub=f"of {kit.count(budget)} tokens"),
            kit.Figure("Padding", near + kit.percent(padding, capacity), sub=f"{kit.compact(padding)} tokens"),
        ],
        dense=True,
    )


def flops_of(tokens: float, pairs: float) -> float:
    """Training FLOPs of one layer (``CostModel``'s default), for these tokens and visible pairs."""
    return LAYER.training_flops(tokens, pairs)
