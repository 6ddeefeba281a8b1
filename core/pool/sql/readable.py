"""``steps`` and ``trajectories`` as the SQL console shows them: readable names instead of numbers and bits.

They are no tables of the file: a query gets the columns that it names, joined from facts and effective state when it
runs. Their columns have the names and meanings of the columns that filters and the HTTP API use (``query.columns``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.pool.query.columns import STEP_COLUMNS, TRAJECTORY_COLUMNS


@dataclass(frozen=True, slots=True)
class ReadableTable:
    """A joined table.

    Attributes:
        doc: what a row is.
        base: the table with a row for each row of this one, and its alias.
        joins: alias -> JOIN clause; a query gets those whose columns it names.
        columns: name -> (SQL, meaning).
    """

    doc: str
    base: tuple[str, str]
    joins: Mapping[str, str]
    columns: Mapping[str, tuple[str, str]]

    def source(self, columns: Sequence[str], limit: int | None = None) -> str:
        """SQL: a subquery with these columns, of at most ``limit`` rows."""
        table, alias = self.base
        chosen = [self.columns[name][0] for name in columns]
        joins = [join for name, join in self.joins.items() if any(re.search(rf"\b{name}\.", sql) for sql in chosen)]
        # The limit comes before the joins: a join of a million rows for the first hundred takes seconds.
        base = f"main.{table}" if limit is None else f"(FROM main.{table} LIMIT {int(limit)})"
        listed = ", ".join(f'{sql} AS "{name}"' for sql, name in zip(chosen, columns, strict=True))
        return f"(SELECT {listed} FROM {base} {alias} {' '.join(joins)})"


_FACTS = {
    "ingested_at": "When it was stored, UTC",
    "dialect": "API that the agent called: chat, responses, messages, completions",
    "n_messages": "Messages of the prompt; NULL: unknown",
    "n_tools": "Tools that the model was offered; NULL: unknown",
    "response_id": "The engine's id of the answer",
    "stream_mode": "How the answer was streamed; NULL: it was not",
    "tokenizer_hash": "Tokenizer of the token ids",
    "journal_segment": "File of the journal that holds the call",
    "journal_offset": "Place in that file, bytes",
    "sampling": "Sampling settings of the request, JSON",
    "metadata": "What the producer attached, JSON",
    "prompt_preview": "First characters of the task, on steps without a parent",
}
_TRAJECTORY_DOCS = {
    "trajectory_uid": "Name of the trajectory",
    "prompt_uid": "Name of its prompt group",
    "channel": "Partition of the pool: train, val",
    "source": "blackbox, whitebox, service or import",
    "agent": "Agent that called",
    "model": "Model that answered",
    "identity_source": "How its calls were recognised as one attempt",
    "run": "Run (experiment) that it belongs to; NULL: none",
    "n_steps": "Steps",
    "n_prompt_tokens": "Context lengths of its steps together, tokens",
    "n_response_tokens": "Sampled tokens",
    "n_unique_tokens": "Tokens, each stored one counted once",
    "reward": "Effective reward; NULL: unscored",
    "quality": "good, bad, unsure",
    "trainable": "Effective: may be trained on",
    "complete": "The attempt is closed",
    "outcome": "Outcome that the producer reported",
    "policy_version_min": "Lowest weights version of its steps",
    "policy_version_max": "Highest weights version of its steps",
    "started_at": "When its first call began, UTC",
    "ended_at": "When its last call ended, UTC",
    "tags": "Tags",
    "n_notes": "Notes",
    "prompt_preview": "First characters of the task",
    "correct": "Label: right or wrong",
    "difficulty": "1 - the success rate of its prompt group",
    "n_tokens": "Context and sampled tokens of its steps together",
    "findings": "What automatic checks noticed in it or in one of its steps",
}

READABLE: dict[str, ReadableTable] = {
    "steps": ReadableTable(
        "One row per model call: facts and effective state.",
        ("step_state", "s"),
        {
            "t": "LEFT JOIN main.trajectory_state t ON t.trajectory_id = s.trajectory_id",
            "f": "LEFT JOIN main.steps f ON f.step_id = s.step_id",
        },
        {
            **{name: (column.sql, column.doc) for name, column in STEP_COLUMNS.items()},
            "captured_reward": ("f.reward", "Reward that the producer sent with the step; reward is the effective one"),
            "has_logprobs": ("s.has_logprobs", "Log-probs of the sampled tokens are stored"),
            **{name: (f"f.{name}", doc) for name, doc in _FACTS.items()},
            "step_id": ("s.step_id", "Number of the step, which step_tokens and step_messages refer to"),
            "trajectory_id": ("s.trajectory_id", "Number of its trajectory"),
            "parent_step_id": ("s.parent_step_id", "Number of the step whose context it continues"),
        },
    ),
    "trajectories": ReadableTable(
        "One row per attempt at a task, with its effective state.",
        ("trajectory_state", "t"),
        {},
        {
            **{name: (sql, _TRAJECTORY_DOCS[name]) for name, sql in TRAJECTORY_COLUMNS.items()},
            "metadata": ("t.metadata", "What was attached when it was registered, JSON"),
            "trajectory_id": ("t.trajectory_id", "Number of the trajectory, which other tables refer to"),
        },
    ),
}
"""Name in the console -> the table. They take the place of the file's tables of these names."""
