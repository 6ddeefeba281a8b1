-- What a machine notices about steps, and the label of correctness.

-- What each call shows by itself (core/pool/findings.py); made again by a rebuild.
CREATE TABLE step_findings (
    step_id         BIGINT NOT NULL,
    trajectory_id   BIGINT NOT NULL,
    bits            INTEGER NOT NULL,
    tool_failed     BOOLEAN NOT NULL,           -- a tool result that the step brings tells of a failure
    answer_hash     BIGINT                      -- equal for equal answers; NULL: nothing to compare
);

ALTER TABLE step_state ADD COLUMN finding_bits INTEGER DEFAULT 0;
ALTER TABLE step_state ADD COLUMN correct BOOLEAN;

ALTER TABLE trajectory_state ADD COLUMN correct BOOLEAN;
ALTER TABLE trajectory_state ADD COLUMN step_finding_bits INTEGER DEFAULT 0;    -- any of its steps'
ALTER TABLE trajectory_state ADD COLUMN finding_bits INTEGER DEFAULT 0;         -- its own: they hold for all its steps
ALTER TABLE trajectory_state ADD COLUMN difficulty DOUBLE;                      -- 1 - success rate of its prompt group
