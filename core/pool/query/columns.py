"""The columns of steps and trajectories that views, pages and APIs may name: their SQL and their meaning.

``s`` is ``step_state``, ``t`` is ``trajectory_state``; a query joins ``t`` only when a column needs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import InvalidInput
from core.pool.state.findings import names_sql
from core.pool.state.policyversion import version_in_force_sql


@dataclass(frozen=True, slots=True)
class Column:
    """One readable column. ``kind``: text, number, time, boolean or list."""

    name: str
    sql: str
    kind: str
    doc: str

    @property
    def needs_trajectory(self) -> bool:
        """True when the value, or part of it, is in ``trajectory_state``."""
        return "t." in self.sql


def _columns(*items: tuple[str, str, str] | tuple[str, str, str, str]) -> dict[str, Column]:
    return {item[0]: Column(item[0], item[3] if len(item) == 4 else f"s.{item[0]}", item[1], item[2]) for item in items}


FINDING_BITS = "(s.finding_bits | t.finding_bits)"
"""The findings of a step as bits: its own and those that its trajectory gives to all its steps."""

STEP_COLUMNS: dict[str, Column] = _columns(
    ("step_uid", "text", "Name of the step"),
    ("trajectory_uid", "text", "Name of its trajectory", "t.trajectory_uid"),
    ("prompt_uid", "text", "Name of its prompt group"),
    ("step_index", "number", "Place in the trajectory, from 0"),
    ("channel", "text", "Partition of the pool: train, val"),
    ("source", "text", "blackbox, whitebox, service or import"),
    ("agent", "text", "Agent that called"),
    ("run", "text", "Run (experiment) of its trajectory"),
    ("model", "text", "Model that answered"),
    ("engine", "text", "Engine that served it"),
    ("policy_version", "number", "Weights version when the call began"),
    ("policy_version_end", "number", "Weights version when it ended"),
    ("token_source", "text", "How far the ids can be trusted"),
    ("transition", "text", "How the prompt relates to the parent step"),
    ("call_kind", "text", "main, auxiliary, retry or subagent"),
    ("identity_source", "text", "How the trajectory was found"),
    ("status", "text", "ok, error, aborted or mismatch"),
    ("error", "text", "What went wrong"),
    ("mismatch", "text", "Why lengths disagree"),
    ("finish_reason", "text", "Why the answer ended"),
    ("n_prompt_tokens", "number", "Context length, tokens"),
    ("n_response_tokens", "number", "Sampled tokens"),
    ("n_shared_tokens", "number", "Leading tokens shared with the parent"),
    ("created_at", "time", "When the call began, UTC"),
    ("latency_s", "number", "Duration, seconds"),
    ("reward", "number", "Effective step reward"),
    ("quality", "text", "good, bad, unsure"),
    ("trainable", "boolean", "Effective: may be trained on"),
    ("tags", "list", "Tags"),
    ("n_notes", "number", "Notes"),
    ("is_last", "boolean", "Last main step of a complete trajectory"),
    ("tool_names", "list", "Tools the answer calls"),
    ("preview", "text", "First characters of the answer"),
    ("trajectory_reward", "number", "Effective reward of the trajectory", "t.reward"),
    ("trajectory_quality", "text", "Quality of the trajectory", "t.quality"),
    ("complete", "boolean", "The trajectory is closed", "t.complete"),
    ("n_tokens", "number", "Context and sampled tokens together", "(s.n_prompt_tokens + s.n_response_tokens)"),
    ("correct", "boolean", "Label of the step: right or wrong"),
    ("trajectory_correct", "boolean", "Label of the trajectory: right or wrong", "t.correct"),
    ("n_steps", "number", "Steps of its trajectory", "t.n_steps"),
    ("trajectory_tokens", "number", "Tokens of its trajectory", "(t.n_prompt_tokens + t.n_response_tokens)"),
    ("difficulty", "number", "1 - the success rate of its prompt group", "t.difficulty"),
    (
        "staleness",
        "number",
        "Policy version in force (last reported, else the channel's newest), minus the step's",
        f"({version_in_force_sql('s.channel')} - s.policy_version)",
    ),
    ("findings", "list", "What a machine noticed", names_sql(FINDING_BITS)),
)

STEP_ALIASES = {"step_reward": "reward", "step_quality": "quality", "step_correct": "correct"}
"""Other names of step columns, for conditions in which ``reward`` alone would be the trajectory's."""

_TRAJECTORY_NAMES = (
    "trajectory_uid", "prompt_uid", "channel", "source", "agent", "run", "model", "identity_source", "n_steps",
    "n_prompt_tokens", "n_response_tokens", "n_unique_tokens", "reward", "quality", "trainable", "complete",
    "outcome", "policy_version_min", "policy_version_max", "started_at", "ended_at", "tags", "n_notes",
    "prompt_preview", "correct", "difficulty",
)  # fmt: skip
TRAJECTORY_COLUMNS: dict[str, str] = {
    **{name: f"t.{name}" for name in _TRAJECTORY_NAMES},
    "n_tokens": "(t.n_prompt_tokens + t.n_response_tokens)",
    "findings": names_sql("(t.finding_bits | t.step_finding_bits)"),
}

GROUP_COLUMNS: tuple[str, ...] = (
    "prompt_uid", "channel", "n_trajectories", "n_complete", "n_scored", "n_steps", "n_tokens", "reward_mean",
    "reward_std", "reward_min", "reward_max", "success_rate", "zero_variance", "prompt_preview", "started_at",
)  # fmt: skip


def parse_order(order: str, allowed: dict[str, str]) -> list[tuple[str, str, bool]]:
    """``"reward desc, created_at"`` -> [(name, sql, descending)]. InvalidInput names what cannot be sorted by."""
    parsed = []
    for part in order.split(","):
        words = part.split()
        if not words:
            continue
        name = words[0]
        direction = words[1].lower() if len(words) > 1 else "asc"
        if name not in allowed or len(words) > 2 or direction not in ("asc", "desc"):
            raise InvalidInput(
                f"Cannot order by {part.strip()!r}.",
                field="order",
                hint=f"A column ({', '.join(allowed)}), then asc or desc.",
            )
        parsed.append((name, allowed[name], direction == "desc"))
    return parsed


def order_sql(parsed: list[tuple[str, str, bool]], tie: str) -> str:
    """ORDER BY text; unknown values come last, ties are broken by ``tie`` so that pages never overlap."""
    parts = [f"{sql} {'DESC' if descending else 'ASC'} NULLS LAST" for _, sql, descending in parsed]
    descending = parsed[0][2] if parsed else False
    return "ORDER BY " + ", ".join([*parts, f"{tie} {'DESC' if descending else 'ASC'}"])
