"""What each source said about a trajectory's reward: the ground that reward policies stand on.

A source is an annotation's (verifier, judge, human, service, ...), ``complete`` (what was said at completion) or
``steps`` (the sum of the steps' known rewards). Per source there is a first and a last word, and their places in the
order of all words: ``steps`` before ``complete`` before annotations. A source whose last word withdraws has none.
"""

from __future__ import annotations

SAID = """
undone_actions AS (
    SELECT action_id FROM action_events GROUP BY action_id HAVING arg_max(event, event_id) = 'undo'
), annotated AS (
    SELECT trajectory_id, source,
        arg_min(value_number, annotation_id) FILTER (value_number IS NOT NULL) AS first_reward,
        min(annotation_id) FILTER (value_number IS NOT NULL) AS first_place,
        arg_max_null(value_number, annotation_id) AS last_reward, max(annotation_id) AS last_place
    FROM annotations
    WHERE kind = 'reward' AND step_id IS NULL AND action_id NOT IN (FROM undone_actions)
    GROUP BY trajectory_id, source
), said AS (
    SELECT trajectory_id, source, first_reward, first_place, last_reward, last_place FROM annotated
    WHERE last_reward IS NOT NULL
    UNION ALL
    SELECT trajectory_id, 'complete', arg_min(reward, event_id), 0, arg_max(reward, event_id), 0
    FROM trajectory_events WHERE reward IS NOT NULL GROUP BY trajectory_id
    UNION ALL
    SELECT trajectory_id, 'steps', sum(reward ORDER BY step_id), -1, sum(reward ORDER BY step_id), -1
    FROM step_state WHERE reward IS NOT NULL GROUP BY trajectory_id
)
"""
