-- What was deleted on purpose: rows are only ever added.
CREATE TABLE retention_runs (
    rule            VARCHAR NOT NULL,           -- JSON
    deleted         VARCHAR NOT NULL,           -- JSON: trajectories, steps, tokens, bytes
    author          VARCHAR NOT NULL,
    run_at          TIMESTAMP NOT NULL
);
