"""Effective state from facts and opinions: the same SQL keeps it after a write and rebuilds it whole.

Rules, in words:

- Only annotations of actions that are not undone count; of those, the latest per target and kind.
- Step reward: annotation, else the fact. Trajectory reward: annotation, else what ``complete`` said, else the sum
  of its steps' known rewards, else NULL.
- Call kind: as linking named it; a main call without tools, unrelated to the conversation before it, in a
  trajectory whose other calls have tools, is auxiliary.
- Step trainable: annotation, else (main, status ok, no mismatch, and the trajectory not labelled untrainable).
- Trajectory trainable: annotation, else whether any of its steps is.
- Channel and prompt group: what registration or completion said of the trajectory, else its first step's (for the
  group the first with tools, since a title request may come before the task).
- Complete: somebody closed it, or its producer marked a step as the last.
- ``is_last``: as the producer said, or the last main step of a complete trajectory.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from core.pool.database import Cursor, registered

DEFAULT_CHANNEL = "train"

_LIVE = """
CREATE OR REPLACE TEMP TABLE live AS
SELECT a.*
FROM annotations a SEMI JOIN scope USING (trajectory_id)
WHERE action_id NOT IN (
    SELECT action_id FROM action_events GROUP BY action_id HAVING arg_max(event, event_id) = 'undo'
);
"""

_OPINIONS = """
CREATE OR REPLACE TEMP TABLE {name} AS
WITH tag AS (
    SELECT {key}, value_text AS tag FROM live WHERE kind = 'tag' AND {level}
    GROUP BY {key}, value_text HAVING arg_max(value_number, annotation_id) = 1
), tags AS (
    SELECT {key}, list(tag ORDER BY tag) AS tags FROM tag GROUP BY {key}
), latest AS (
    SELECT {key},
        arg_max_null(value_number, annotation_id) FILTER (kind = 'reward') AS reward,
        arg_max_null(value_text, annotation_id) FILTER (kind = 'quality') AS quality,
        arg_max_null(value_number, annotation_id) FILTER (kind = 'trainable') AS trainable,
        count(*) FILTER (kind = 'note') AS n_notes
    FROM live WHERE {level} GROUP BY {key}
)
SELECT latest.*, tags.tags FROM latest LEFT JOIN tags USING ({key});
"""

_SAID = """
CREATE OR REPLACE TEMP TABLE said AS
WITH event AS (
    SELECT trajectory_id,
        arg_max(prompt_uid, event_id) AS prompt_uid,
        arg_max(channel, event_id) AS channel,
        arg_max(agent, event_id) AS agent,
        arg_max(reward, event_id) AS reward,
        arg_max(outcome, event_id) AS outcome,
        arg_max(metadata, event_id) AS metadata,
        bool_or(kind = 'complete') AS complete
    FROM trajectory_events SEMI JOIN scope USING (trajectory_id) GROUP BY trajectory_id
), fact AS (
    SELECT trajectory_id,
        coalesce(arg_min(prompt_uid, step_id) FILTER (n_tools > 0), arg_min(prompt_uid, step_id)) AS prompt_uid,
        arg_min(channel, step_id) AS channel,
        coalesce(max(n_tools), 0) > 0 AS has_tools,
        arg_max(agent, step_id) AS agent,
        bool_or(is_last) AS closed,
        arg_min(prompt_preview, step_id) FILTER (n_tools > 0) AS tool_prompt_preview,
        arg_min(prompt_preview, step_id) AS any_prompt_preview
    FROM steps SEMI JOIN scope USING (trajectory_id) GROUP BY trajectory_id
)
SELECT scope.trajectory_id,
    coalesce(event.prompt_uid, fact.prompt_uid) AS prompt_uid,
    coalesce(event.channel, fact.channel, $default_channel) AS channel,
    coalesce(event.agent, fact.agent) AS agent,
    coalesce(event.complete, FALSE) OR coalesce(fact.closed, FALSE) AS complete,
    event.reward, event.outcome, event.metadata,
    coalesce(fact.has_tools, FALSE) AS has_tools,
    coalesce(fact.tool_prompt_preview, fact.any_prompt_preview) AS prompt_preview
FROM scope LEFT JOIN event USING (trajectory_id) LEFT JOIN fact USING (trajectory_id);
"""

_STEPS = """
CREATE OR REPLACE TEMP TABLE effective AS
WITH continued AS (
    SELECT DISTINCT parent_step_id AS step_id
    FROM steps SEMI JOIN scope USING (trajectory_id)
    WHERE n_tools > 0 AND transition IN ('extends', 'realigned', 'tail_replaced')
), kind AS (
    SELECT f.*,
        CASE WHEN f.call_kind = 'main' AND f.source = 'blackbox' AND said.has_tools
                AND coalesce(f.n_tools, 0) = 0 AND continued.step_id IS NULL
                AND coalesce(f.transition, 'forked') IN ('forked', 'compacted')
            THEN 'auxiliary' ELSE f.call_kind END AS effective_kind
    FROM (FROM steps SEMI JOIN scope USING (trajectory_id)) f
    JOIN said USING (trajectory_id)
    LEFT JOIN continued ON continued.step_id = f.step_id
), last AS (
    SELECT trajectory_id, arg_max(step_id, (step_index, step_id)) AS step_id
    FROM kind WHERE effective_kind = 'main' AND status = 'ok' GROUP BY trajectory_id
)
SELECT
    f.step_id, f.trajectory_id, f.parent_step_id, f.step_uid, said.prompt_uid, f.step_index, said.channel,
    f.source, f.agent, f.model, f.engine, f.policy_version, f.policy_version_end, f.token_source,
    f.transition, f.effective_kind AS call_kind, f.identity_source, f.status, f.error, f.mismatch,
    f.finish_reason, f.n_prompt_tokens, f.n_response_tokens, f.n_shared_tokens, f.has_logprobs,
    f.created_at, f.latency_s,
    coalesce(opinion.reward, f.reward) AS reward,
    opinion.quality,
    coalesce(
        opinion.trainable = 1,
        f.effective_kind = 'main' AND f.status = 'ok' AND f.mismatch IS NULL AND coalesce(whole.trainable, 1) = 1
    ) AS trainable,
    coalesce(opinion.tags, []) AS tags,
    coalesce(opinion.n_notes, 0)::INTEGER AS n_notes,
    f.is_last OR (said.complete AND last.step_id IS NOT NULL) AS is_last,
    f.tool_names, f.preview
FROM kind f
JOIN said USING (trajectory_id)
LEFT JOIN step_opinions opinion ON opinion.step_id = f.step_id
LEFT JOIN trajectory_opinions whole ON whole.trajectory_id = f.trajectory_id
LEFT JOIN last ON last.step_id = f.step_id
ORDER BY f.step_id;
"""

_TRAJECTORIES = """
CREATE OR REPLACE TEMP TABLE effective_trajectories AS
WITH step AS (
    SELECT trajectory_id,
        arg_min(source, step_id) AS source,
        arg_max(model, step_id) AS model,
        arg_min(identity_source, step_id) AS identity_source,
        count(*)::INTEGER AS n_steps,
        coalesce(sum(n_prompt_tokens), 0)::BIGINT AS n_prompt_tokens,
        coalesce(sum(n_response_tokens), 0)::BIGINT AS n_response_tokens,
        sum(coalesce(n_prompt_tokens, 0) - n_shared_tokens + coalesce(n_response_tokens, 0))::BIGINT AS n_unique_tokens,
        sum(reward ORDER BY step_id) AS reward,
        bool_or(trainable) AS trainable,
        min(policy_version) AS policy_version_min,
        max(coalesce(policy_version_end, policy_version)) AS policy_version_max,
        min(created_at) AS started_at,
        max(created_at + to_microseconds((coalesce(latency_s, 0) * 1e6)::BIGINT)) AS ended_at
    FROM effective GROUP BY trajectory_id
)
SELECT
    t.trajectory_id, t.trajectory_uid, said.prompt_uid, said.channel, step.source, said.agent, step.model,
    step.identity_source,
    coalesce(step.n_steps, 0) AS n_steps,
    coalesce(step.n_prompt_tokens, 0) AS n_prompt_tokens,
    coalesce(step.n_response_tokens, 0) AS n_response_tokens,
    coalesce(step.n_unique_tokens, 0) AS n_unique_tokens,
    coalesce(opinion.reward, said.reward, step.reward) AS reward,
    opinion.quality,
    coalesce(opinion.trainable = 1, step.trainable, FALSE) AS trainable,
    said.complete, said.outcome, step.policy_version_min, step.policy_version_max, step.started_at, step.ended_at,
    coalesce(opinion.tags, []) AS tags,
    coalesce(opinion.n_notes, 0)::INTEGER AS n_notes,
    said.prompt_preview, said.metadata
FROM (FROM trajectories SEMI JOIN scope USING (trajectory_id)) t
JOIN said USING (trajectory_id)
LEFT JOIN step USING (trajectory_id)
LEFT JOIN trajectory_opinions opinion ON opinion.trajectory_id = t.trajectory_id
ORDER BY t.trajectory_id;
"""

_MUTABLE = (
    "prompt_uid", "channel", "call_kind", "reward", "quality", "trainable", "n_notes", "is_last",
)  # fmt: skip
"""Columns of ``step_state`` that can change after a step is in (``tags`` is updated apart: lists move rows)."""


def _update_steps(columns: tuple[str, ...]) -> str:
    assignments = ", ".join(f"{name} = e.{name}" for name in columns)
    changed = " OR ".join(f"s.{name} IS DISTINCT FROM e.{name}" for name in columns)
    return f"UPDATE step_state s SET {assignments} FROM effective e WHERE s.step_id = e.step_id AND ({changed})"


def _derive(cursor: Cursor) -> None:
    """Fill ``effective`` and ``effective_trajectories`` for the trajectories in ``scope``."""
    cursor.execute(_LIVE)
    cursor.execute(_OPINIONS.format(name="step_opinions", key="step_id", level="step_id IS NOT NULL"))
    cursor.execute(_OPINIONS.format(name="trajectory_opinions", key="trajectory_id", level="step_id IS NULL"))
    cursor.execute(_SAID, {"default_channel": DEFAULT_CHANNEL})
    cursor.execute(_STEPS)
    cursor.execute(_TRAJECTORIES)


def refresh(cursor: Cursor, trajectory_ids: Iterable[int] | None, *, opinions_changed: bool = True) -> None:
    """Bring the state of these trajectories (None: all) in line with facts and opinions."""
    if trajectory_ids is None:
        cursor.execute("CREATE OR REPLACE TEMP TABLE scope AS SELECT trajectory_id FROM trajectories")
    else:
        wanted = sorted(set(trajectory_ids))
        if not wanted:
            return
        with registered(cursor, touched=pa.table({"trajectory_id": pa.array(wanted, pa.int64())})):
            cursor.execute("CREATE OR REPLACE TEMP TABLE scope AS SELECT trajectory_id FROM touched")
    _derive(cursor)
    cursor.execute(_update_steps(_MUTABLE))
    if opinions_changed:
        cursor.execute(_update_steps(("tags",)))
    cursor.execute(
        "INSERT INTO step_state BY NAME SELECT * FROM effective"
        " WHERE step_id NOT IN (SELECT step_id FROM step_state SEMI JOIN scope USING (trajectory_id))"
        " ORDER BY step_id"
    )
    cursor.execute("DELETE FROM trajectory_state WHERE trajectory_id IN (SELECT trajectory_id FROM scope)")
    cursor.execute("INSERT INTO trajectory_state BY NAME SELECT * FROM effective_trajectories")


def rebuild(cursor: Cursor) -> None:
    """Throw the state away and derive it again from facts and annotations."""
    cursor.execute("DELETE FROM step_state")
    cursor.execute("DELETE FROM trajectory_state")
    refresh(cursor, None)
