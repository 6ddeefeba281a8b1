"""Derives the effective state from facts and opinions. The same SQL updates it after a write and rebuilds it.

Rules, in words:

- Only annotations of actions that are not undone count; of those, the latest per target and kind.
- Step reward: annotation, else the fact. Trajectory reward: annotation, else the one given at completion, else the sum
  of its steps' known rewards, else NULL.
- Call kind: as linking named it; a main call without tools, unrelated to the conversation before it, in a
  trajectory whose other calls have tools, is auxiliary.
- Step trainable: annotation, else (main, status ok, no mismatch, its trajectory certain and not labelled untrainable).
- Trajectory trainable: annotation, else whether any of its steps is.
- Channel and prompt group: those of the registration or completion, else its first step's (for the
  group the first with tools, since a title request may come before the task).
- Run: as the registration or completion names it in its metadata, else the first step that names one.
- Complete: it was closed by a request, or its producer marked a step as the last.
- ``is_last``: as the producer marked it, or the last main step of a complete trajectory.
- Findings: as ``core.pool.state.findings`` defines them. Difficulty: 1 - the success rate of the prompt group.

After new facts, ``refresh`` derives whole trajectories; after new opinions, ``relabel`` updates only their targets.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.pool.state.adoption import apply_adopted
from core.pool.state.findings import BIT, CHECKS, FAILED_OUTCOMES
from core.pool.state.runs import run_sql
from core.pool.state.sharedsql import trainable_sql
from core.pool.state.workspace import Workspace
from core.pool.store.database import Cursor

DEFAULT_CHANNEL = "train"

_REPORTED = f"""
WITH event AS (
    SELECT trajectory_id,
        arg_max(prompt_uid, event_id) AS prompt_uid,
        arg_max(channel, event_id) AS channel,
        arg_max(agent, event_id) AS agent,
        arg_max(reward, event_id) AS reward,
        arg_max(outcome, event_id) AS outcome,
        arg_max(metadata, event_id) AS metadata,
        arg_max({run_sql("metadata")}, event_id) AS run,
        bool_or(kind = 'complete') AS complete
    FROM trajectory_events SEMI JOIN scope USING (trajectory_id) GROUP BY trajectory_id
), fact AS (
    SELECT trajectory_id,
        coalesce(arg_min(prompt_uid, step_id) FILTER (n_tools > 0), arg_min(prompt_uid, step_id)) AS prompt_uid,
        arg_min(channel, step_id) AS channel,
        coalesce(max(n_tools), 0) > 0 AS has_tools,
        arg_max(agent, step_id) AS agent,
        arg_min(run, step_id) AS run,
        bool_or(is_last) AS closed,
        arg_min(prompt_preview, step_id) FILTER (n_tools > 0) AS tool_prompt_preview,
        arg_min(prompt_preview, step_id) AS any_prompt_preview
    FROM steps SEMI JOIN scope USING (trajectory_id) GROUP BY trajectory_id
)
SELECT scope.trajectory_id,
    coalesce(event.prompt_uid, fact.prompt_uid) AS prompt_uid,
    coalesce(event.channel, fact.channel, $default_channel) AS channel,
    coalesce(event.agent, fact.agent) AS agent,
    coalesce(event.run, fact.run) AS run,
    coalesce(event.complete, FALSE) OR coalesce(fact.closed, FALSE) AS complete,
    event.reward, event.outcome, event.metadata,
    coalesce(fact.has_tools, FALSE) AS has_tools,
    coalesce(fact.tool_prompt_preview, fact.any_prompt_preview) AS prompt_preview
FROM scope LEFT JOIN event USING (trajectory_id) LEFT JOIN fact USING (trajectory_id)
"""

_STEPS = f"""
WITH continued AS (
    SELECT DISTINCT parent_step_id AS step_id
    FROM steps SEMI JOIN scope USING (trajectory_id)
    WHERE n_tools > 0 AND transition IN ('extends', 'realigned', 'tail_replaced')
), kind AS (
    SELECT f.*,
        CASE WHEN f.call_kind = 'main' AND f.source = 'blackbox' AND reported.has_tools
                AND coalesce(f.n_tools, 0) = 0 AND continued.step_id IS NULL
                AND coalesce(f.transition, 'forked') IN ('forked', 'compacted')
            THEN 'auxiliary' ELSE f.call_kind END AS effective_kind
    FROM (FROM steps SEMI JOIN scope USING (trajectory_id)) f
    JOIN reported USING (trajectory_id)
    LEFT JOIN continued ON continued.step_id = f.step_id
), last AS (
    SELECT trajectory_id, arg_max(step_id, (step_index, step_id)) AS step_id
    FROM kind WHERE effective_kind = 'main' AND status = 'ok' GROUP BY trajectory_id
), observed AS (
    SELECT step_id, bits, tool_failed, answer_hash FROM step_findings SEMI JOIN scope USING (trajectory_id)
), answers_before AS (
    SELECT step_id, answer_hash,
        lag(answer_hash) OVER (PARTITION BY trajectory_id ORDER BY step_index, step_id) AS before,
        row_number() OVER (PARTITION BY trajectory_id, answer_hash ORDER BY step_index, step_id) AS nth
    FROM kind JOIN observed USING (step_id) WHERE effective_kind = 'main' AND status = 'ok'
), tool_error AS (
    SELECT DISTINCT parent_step_id AS step_id FROM kind JOIN observed USING (step_id)
    WHERE tool_failed AND transition IS DISTINCT FROM 'compacted'
)
SELECT
    f.step_id, f.trajectory_id, f.parent_step_id, f.step_uid, reported.prompt_uid, f.step_index, reported.channel,
    f.source, f.agent, reported.run, f.model, f.engine, f.policy_version, f.policy_version_end, f.token_source,
    f.transition, f.effective_kind AS call_kind, f.identity_source, f.status, f.error, f.mismatch,
    f.finish_reason, f.n_prompt_tokens, f.n_response_tokens, f.n_shared_tokens, f.has_logprobs,
    f.created_at, f.latency_s,
    coalesce(opinion.reward, f.reward) AS reward,
    opinion.quality,
    {
    trainable_sql(kind="f.effective_kind", status="f.status", mismatch="f.mismatch", bits="coalesce(observed.bits, 0)")
} AS trainable,
    coalesce(opinion.tags_json, '[]') AS tags_json,
    coalesce(opinion.n_notes, 0)::INTEGER AS n_notes,
    opinion.correct = 1 AS correct,
    f.is_last OR (reported.complete AND last.step_id IS NOT NULL) AS is_last,
    f.tool_names, f.preview,
    coalesce(observed.bits, 0)
        | CASE WHEN answers_before.before = answers_before.answer_hash THEN $repeated_step ELSE 0 END
        | CASE WHEN answers_before.answer_hash IS NOT NULL AND answers_before.nth >= 3 THEN $looping ELSE 0 END
        | CASE WHEN tool_error.step_id IS NOT NULL THEN $tool_error ELSE 0 END
        | CASE WHEN f.mismatch IS NOT NULL OR f.status = 'mismatch' THEN $length_mismatch ELSE 0 END
        | CASE WHEN f.transition IN ('realigned', 'tail_replaced') THEN $drift ELSE 0 END AS finding_bits
FROM kind f
JOIN reported USING (trajectory_id)
LEFT JOIN step_opinions opinion ON opinion.step_id = f.step_id
LEFT JOIN trajectory_opinions whole ON whole.trajectory_id = f.trajectory_id
LEFT JOIN last ON last.step_id = f.step_id
LEFT JOIN observed ON observed.step_id = f.step_id
LEFT JOIN answers_before ON answers_before.step_id = f.step_id
LEFT JOIN tool_error ON tool_error.step_id = f.step_id
ORDER BY f.step_id
"""

_TRAJECTORIES = """
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
        bit_or(finding_bits)::INTEGER AS finding_bits,
        min(policy_version) AS policy_version_min,
        max(coalesce(policy_version_end, policy_version)) AS policy_version_max,
        min(created_at) AS started_at,
        max(created_at + to_microseconds((coalesce(latency_s, 0) * 1e6)::BIGINT)) AS ended_at
    FROM effective GROUP BY trajectory_id
)
SELECT
    t.trajectory_id, t.trajectory_uid, reported.prompt_uid, reported.channel, step.source, reported.agent, reported.run,
    step.model, step.identity_source,
    coalesce(step.n_steps, 0) AS n_steps,
    coalesce(step.n_prompt_tokens, 0) AS n_prompt_tokens,
    coalesce(step.n_response_tokens, 0) AS n_response_tokens,
    coalesce(step.n_unique_tokens, 0) AS n_unique_tokens,
    coalesce(opinion.reward, reported.reward, step.reward) AS reward,
    opinion.quality,
    coalesce(opinion.trainable = 1, step.trainable, FALSE) AS trainable,
    reported.complete, reported.outcome, step.policy_version_min, step.policy_version_max, step.started_at,
    step.ended_at,
    coalesce(opinion.tags_json, '[]') AS tags_json,
    coalesce(opinion.n_notes, 0)::INTEGER AS n_notes,
    reported.prompt_preview, reported.metadata,
    opinion.correct = 1 AS correct,
    coalesce(step.finding_bits, 0) AS step_finding_bits,
    0 AS finding_bits, NULL::DOUBLE AS difficulty   -- made by _GROUPS and _HACKING
FROM (FROM trajectories SEMI JOIN scope USING (trajectory_id)) t
JOIN reported USING (trajectory_id)
LEFT JOIN step USING (trajectory_id)
LEFT JOIN trajectory_opinions opinion ON opinion.trajectory_id = t.trajectory_id
ORDER BY t.trajectory_id
"""

_HACKING = """
WITH checked AS (
    SELECT trajectory_id, source, arg_max_null(value_number, annotation_id) AS reward FROM live
    WHERE kind = 'reward' AND step_id IS NULL AND list_contains($checks, lower(split_part(source, ':', 1)))
    GROUP BY trajectory_id, source
    UNION ALL
    SELECT trajectory_id, 'complete', arg_max(reward, event_id) FROM trajectory_events
    SEMI JOIN scope USING (trajectory_id) GROUP BY trajectory_id
), failed AS (
    SELECT DISTINCT trajectory_id FROM checked WHERE reward <= 0.5
), suspected AS (
    SELECT t.trajectory_id,
        coalesce(t.reward > 0.5, FALSE)
        AND NOT (coalesce(opinion.reward_source = 'human', FALSE) AND opinion.reward IS NOT NULL)
        AND (
            failed.trajectory_id IS NOT NULL OR t.correct IS NOT DISTINCT FROM FALSE
            OR coalesce(list_contains($failed_outcomes, lower(t.outcome)), FALSE)
            OR coalesce(json_extract_string(t.metadata, '$.checks_passed') = 'false', FALSE)
        ) AS it_is
    FROM (FROM trajectory_state SEMI JOIN scope USING (trajectory_id)) t
    LEFT JOIN failed USING (trajectory_id)
    LEFT JOIN trajectory_opinions opinion ON opinion.trajectory_id = t.trajectory_id
)
UPDATE trajectory_state t SET finding_bits = xor(t.finding_bits, $bit) FROM suspected
WHERE suspected.trajectory_id = t.trajectory_id AND suspected.it_is <> (t.finding_bits & $bit <> 0)
"""

_GROUPS = """
WITH member AS (
    SELECT t.prompt_uid, t.channel, t.reward FROM trajectory_state t SEMI JOIN regrouped USING (prompt_uid, channel)
    WHERE t.n_steps > 0
), prompt_group AS (
    SELECT prompt_uid, channel, 1 - avg((reward > 0.5)::INTEGER) AS difficulty,
        count(reward) >= 2 AND min(reward) = max(reward) AS zero_variance
    FROM member GROUP BY prompt_uid, channel
)
UPDATE trajectory_state t SET difficulty = g.difficulty,
    finding_bits = CASE WHEN g.zero_variance THEN t.finding_bits | $bit ELSE t.finding_bits & ~$bit END
FROM prompt_group g
WHERE g.prompt_uid = t.prompt_uid AND g.channel = t.channel
    AND (g.difficulty IS DISTINCT FROM t.difficulty OR g.zero_variance <> (t.finding_bits & $bit <> 0))
"""

_MAY_BE_HACKED = """
SELECT coalesce(bool_or(reward > 0.5 OR finding_bits & $bit <> 0), FALSE)
FROM trajectory_state SEMI JOIN scope USING (trajectory_id)
"""
_GROUPS_HAVE_STATE = """
SELECT coalesce(bool_or(reward IS NOT NULL OR difficulty IS NOT NULL OR finding_bits & $bit <> 0), FALSE)
FROM trajectory_state SEMI JOIN regrouped USING (prompt_uid, channel)
"""
"""``_MAY_BE_HACKED`` and this: whether ``_HACKING`` and ``_GROUPS`` can change a row. These two are faster."""

_MUTABLE = (
    "prompt_uid", "channel", "run", "call_kind", "reward", "quality", "trainable", "n_notes", "is_last", "correct",
    "finding_bits", "tags_json",
)  # fmt: skip
"""Columns of ``step_state`` that can change after a step is in."""


def update_steps(columns: Iterable[str]) -> str:
    """UPDATE of ``step_state`` from ``effective``, where one of these columns changed."""
    names = list(columns)
    assignments = ", ".join(f"{name} = e.{name}" for name in names)
    changed = " OR ".join(f"s.{name} IS DISTINCT FROM e.{name}" for name in names)
    return f"UPDATE step_state s SET {assignments} FROM effective e WHERE s.step_id = e.step_id AND ({changed})"


def derive_group_state(work: Workspace) -> None:
    """What takes a trajectory's opinions or its group to see: difficulty, equal rewards, suspected reward hacking.

    Reads ``scope``, ``regrouped``, ``live`` and ``trajectory_opinions``. Adopted reward policies are applied first.
    """
    apply_adopted(work)
    hacking, zero_variance = {"bit": BIT["reward_hacking"]}, {"bit": BIT["zero_variance"]}
    if work.holds(_MAY_BE_HACKED, hacking):
        work.cursor.execute(_HACKING, {**hacking, "checks": list(CHECKS), "failed_outcomes": list(FAILED_OUTCOMES)})
    if work.holds(_GROUPS_HAVE_STATE, zero_variance):
        work.cursor.execute(_GROUPS, zero_variance)


def _derive(work: Workspace) -> None:
    """``effective`` and ``effective_trajectories`` of the trajectories in ``scope``."""
    work.live_in_scope()
    work.step_opinions()
    work.trajectory_opinions()
    work.fill("reported", _REPORTED, {"default_channel": DEFAULT_CHANNEL})
    names = ("repeated_step", "looping", "tool_error", "length_mismatch", "drift")
    work.fill("effective", _STEPS, {name: BIT[name] for name in names})
    work.fill("effective_trajectories", _TRAJECTORIES)


def refresh(cursor: Cursor, trajectory_ids: Iterable[int] | None) -> None:
    """Bring the state of these trajectories (None: all) in line with facts and opinions."""
    work = Workspace(cursor)
    if trajectory_ids is None:
        work.scope_to_all()
    else:
        wanted = set(trajectory_ids)
        if not wanted:
            return
        work.scope_to(wanted)
    _derive(work)
    cursor.execute(update_steps(_MUTABLE))
    cursor.execute(
        "INSERT INTO step_state BY NAME SELECT * FROM effective"
        " WHERE step_id NOT IN (SELECT step_id FROM step_state SEMI JOIN scope USING (trajectory_id))"
        " ORDER BY step_id"
    )
    work.groups_of_scope(also_effective=True)
    cursor.execute("DELETE FROM trajectory_state WHERE trajectory_id IN (SELECT trajectory_id FROM scope)")
    cursor.execute("INSERT INTO trajectory_state BY NAME SELECT * FROM effective_trajectories")
    derive_group_state(work)


def rebuild(cursor: Cursor) -> None:
    """Throw the state away and derive it again from facts and annotations."""
    cursor.execute("DELETE FROM step_state")
    cursor.execute("DELETE FROM trajectory_state")
    refresh(cursor, None)
