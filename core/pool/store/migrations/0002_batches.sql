-- Recipes by version, batches handed to trainers, and what became of them. Rows are only ever added, but for a batch's
-- state, which is its latest word: batch_events keeps every one.

CREATE TABLE recipe_versions (
    name            VARCHAR NOT NULL,
    version         INTEGER NOT NULL,           -- from 1
    recipe          VARCHAR NOT NULL,           -- JSON
    author          VARCHAR NOT NULL,
    created_at      TIMESTAMP NOT NULL
);

INSERT INTO recipe_versions SELECT name, 1, recipe, 'studio', created_at FROM saved_recipes;
DROP TABLE saved_recipes;

-- The latest row of a channel counts.
CREATE TABLE active_recipes (
    channel         VARCHAR NOT NULL,
    name            VARCHAR,                    -- NULL: none any more
    version         INTEGER,                    -- NULL: always the newest
    author          VARCHAR NOT NULL,
    activated_at    TIMESTAMP NOT NULL
);

CREATE TABLE batches (
    batch_uid       VARCHAR NOT NULL,
    consumer        VARCHAR NOT NULL,
    request_id      VARCHAR,                    -- the consumer's own name for its request: a retry gets the same batch
    channel         VARCHAR NOT NULL,
    state           VARCHAR NOT NULL,           -- leased | acked | released | expired
    shared          BOOLEAN NOT NULL,           -- leased without regard to other consumers
    plan_hash       VARCHAR NOT NULL,
    recipe_name     VARCHAR,
    recipe_version  INTEGER,
    policy_version  BIGINT,                     -- in force when leased
    n_groups        BIGINT NOT NULL,
    n_trajectories  BIGINT NOT NULL,
    n_steps         BIGINT NOT NULL,
    n_tokens        BIGINT NOT NULL,
    leased_at       TIMESTAMP NOT NULL,
    expires_at      TIMESTAMP NOT NULL,
    finished_at     TIMESTAMP,
    update_index    BIGINT                      -- the trainer's update that consumed it
);

-- The plan as it was handed out: labels may change later, this doesn't.
CREATE TABLE batch_plans (
    batch_uid       VARCHAR NOT NULL,
    part            VARCHAR NOT NULL,           -- core/batch/frozen.py
    body            BLOB NOT NULL
);

-- Which steps a batch holds, for joins: who consumed a step, and with what advantage.
CREATE TABLE batch_steps (
    batch_uid       VARCHAR NOT NULL,
    step_uid        VARCHAR NOT NULL,
    trajectory_uid  VARCHAR NOT NULL,
    prompt_uid      VARCHAR NOT NULL,
    policy_version  BIGINT,
    trajectory_reward DOUBLE,
    advantage       DOUBLE
);

CREATE TABLE batch_events (
    batch_uid       VARCHAR NOT NULL,
    event           VARCHAR NOT NULL,           -- leased | renewed | acked | released | expired
    detail          VARCHAR,                    -- JSON
    created_at      TIMESTAMP NOT NULL
);

-- What trainers measured.
CREATE TABLE batch_metrics (
    batch_uid       VARCHAR NOT NULL,
    update_index    BIGINT,
    step_uid        VARCHAR,                    -- NULL: of the whole update
    name            VARCHAR NOT NULL,
    value           DOUBLE,
    created_at      TIMESTAMP NOT NULL
);
