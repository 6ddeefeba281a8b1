-- The opinions log (core/pool/opinionlog.py): how far this file holds it, and what deletions took.

-- One row once a log is kept: the newest of its records that this file holds.
CREATE TABLE opinions_position (
    generation      VARCHAR NOT NULL,           -- the log's name: a new one begins where the old one does not fit
    mark            VARCHAR NOT NULL,           -- a place before that record
    n               BIGINT NOT NULL             -- its number
);

-- Feedback that waits until the log's opinions are in: theirs came first.
CREATE TABLE held_feedback (
    body            VARCHAR NOT NULL            -- JSON, as ``Pool.append`` takes it
);

ALTER TABLE retention_runs ADD COLUMN run_uid VARCHAR;      -- NULL: run before deletions were kept
ALTER TABLE retention_runs ADD COLUMN positions VARCHAR;    -- JSON: how far the journal was read
ALTER TABLE retention_runs ADD COLUMN next_ids VARCHAR;     -- JSON: ids below these were in use

-- What each run deleted: a rebuild from the journal leaves it out.
CREATE TABLE deleted (
    run_uid         VARCHAR NOT NULL,
    kind            VARCHAR NOT NULL,           -- step | trajectory | feedback
    uid             VARCHAR NOT NULL
);

-- Runs that were taken back.
CREATE TABLE restored_runs (
    run_uid         VARCHAR NOT NULL,
    author          VARCHAR NOT NULL,
    restored_at     TIMESTAMP NOT NULL
);
