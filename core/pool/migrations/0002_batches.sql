-- Recipes by version, batches handed to trainers, and what became of them. Rows of the first three and of the metrics
-- are only ever added; a batch's state is its latest word, and batch_events keeps every one.

CREATE TABLE recipe_versions (
    name            VARCHAR NOT NULL,
    version         INTEGER NOT NULL,
    recipe          VARCHAR NOT NULL,           -- JSON
    author          VARCHAR NOT NULL,
    created_at      TIMESTAMP NOT NULL
);

CREATE TABLE active_recipes (
    channel         VARCHAR NOT NULL,
    name            VARCHAR NOT NULL,
    version         INTEGER,                    -- NULL: always the newest
    activated_at    TIMESTAMP NOT NULL
);

CREATE TABLE batches (
    batch_uid       VARCHAR NOT NULL,
    consumer        VARCHAR NOT NULL,
    request_id      VARCHAR,
    channel         VARCHAR NOT NULL,
    state           VARCHAR NOT NULL,           -- leased | acked | released | expired
    plan_hash       VARCHAR NOT NULL,
    view            VARCHAR NOT NULL,           -- JSON
    recipe          VARCHAR NOT NULL,           -- JSON
    recipe_name     VARCHAR,
    recipe_version  INTEGER,
    policy_version  BIGINT,                     -- in force when leased
    level           VARCHAR,                    -- of the advantages
    totals          VARCHAR NOT NULL,           -- JSON
    shared          BOOLEAN NOT NULL,           -- leased without regard to other consumers
    leased_at       TIMESTAMP NOT NULL,
    expires_at      TIMESTAMP NOT NULL,
    finished_at     TIMESTAMP,
    update_index    BIGINT                      -- the trainer's update that consumed it
);

-- What a batch held, as it was planned: labels may change later, these don't.
CREATE TABLE batch_steps (
    batch_uid       VARCHAR NOT NULL,
    place           INTEGER NOT NULL,
    step_uid        VARCHAR NOT NULL,
    trajectory_uid  VARCHAR NOT NULL,
    prompt_uid      VARCHAR NOT NULL,
    step_index      INTEGER NOT NULL,
    group_number    INTEGER NOT NULL,
    trajectory      INTEGER NOT NULL,
    policy_version  BIGINT,
    reward          DOUBLE,
    trajectory_reward DOUBLE,
    in_loss         BOOLEAN NOT NULL,
    advantage       DOUBLE,
    step_return     DOUBLE,
    token_advantages FLOAT[]
);

CREATE TABLE batch_events (
    batch_uid       VARCHAR NOT NULL,
    event           VARCHAR NOT NULL,           -- leased | acked | released | expired
    detail          VARCHAR,                    -- JSON
    created_at      TIMESTAMP NOT NULL
);

CREATE TABLE batch_metrics (
    batch_uid       VARCHAR NOT NULL,
    update_index    BIGINT,
    step_uid        VARCHAR,                    -- NULL: of the whole update
    name            VARCHAR NOT NULL,
    value           DOUBLE,
    created_at      TIMESTAMP NOT NULL
);
