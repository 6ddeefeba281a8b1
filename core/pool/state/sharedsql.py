"""SQL conditions that several statements share, each defined once."""

from __future__ import annotations

from core.pool.state.findings import BIT

UNDONE = "SELECT action_id FROM action_events GROUP BY action_id HAVING arg_max(event, event_id) = 'undo'"
"""The actions that are undone now: their annotations count for nothing."""


READY = "Trainable, in a complete and scored trajectory"
"""The description of ready for filters, the life cycle of a step and the glossary."""


def settled_sql(trajectory: str) -> str:
    """Whether a trajectory, given by the alias of its state, is complete and scored; its trainable steps are ready."""
    return f"({trajectory}.complete AND {trajectory}.reward IS NOT NULL)"


def trainable_sql(*, kind: str, status: str, mismatch: str, bits: str) -> str:
    """SQL: whether a step is trainable: by its label, else by its kind, status and findings and its trajectory's label.

    Args:
        kind, status, mismatch, bits: SQL of the step's kind of call, status, mismatch and findings. ``opinion`` and
            ``whole`` are the joined ``step_opinions`` and ``trajectory_opinions``.
    """
    return f"""coalesce(
        opinion.trainable = 1,
        {kind} = 'main' AND {status} = 'ok' AND {mismatch} IS NULL AND coalesce(whole.trainable, 1) = 1
            AND {bits} & {BIT["uncertain"]} = 0
    )"""
