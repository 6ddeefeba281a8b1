-- The run (experiment) that a trajectory belongs to, as its producer named it in metadata. See core/pool/state/runs.py.
ALTER TABLE steps ADD COLUMN run VARCHAR;

UPDATE steps SET run = nullif(left(coalesce(
    CASE WHEN json_type(metadata, '$.run') IN ('VARCHAR', 'UBIGINT') THEN json_extract_string(metadata, '$.run') END,
    CASE WHEN json_type(metadata, '$.learning_run') = 'VARCHAR' THEN json_extract_string(metadata, '$.learning_run') END
), 256), '')
WHERE contains(metadata, '"run"') OR contains(metadata, '"learning_run"');

ALTER TABLE trajectory_state ADD COLUMN run VARCHAR;

UPDATE trajectory_state t SET run = named.run FROM (
    SELECT trajectory_id, coalesce(event.run, fact.run) AS run FROM (
        SELECT trajectory_id, arg_max(run, event_id) AS run FROM (
            SELECT trajectory_id, event_id, nullif(left(coalesce(
                CASE WHEN json_type(metadata, '$.run') IN ('VARCHAR', 'UBIGINT')
                    THEN json_extract_string(metadata, '$.run') END,
                CASE WHEN json_type(metadata, '$.learning_run') = 'VARCHAR'
                    THEN json_extract_string(metadata, '$.learning_run') END
            ), 256), '') AS run FROM trajectory_events
        ) GROUP BY trajectory_id
    ) event FULL JOIN (
        SELECT trajectory_id, arg_min(run, step_id) AS run FROM steps GROUP BY trajectory_id
    ) fact USING (trajectory_id)
) named WHERE named.trajectory_id = t.trajectory_id AND named.run IS NOT NULL;

ALTER TABLE step_state ADD COLUMN run VARCHAR;

UPDATE step_state s SET run = t.run FROM trajectory_state t
WHERE t.trajectory_id = s.trajectory_id AND t.run IS NOT NULL;
