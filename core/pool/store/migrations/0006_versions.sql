-- Dataset versions: a selection with its labels as they were, never changed again. Reward policies by version, and
-- which one each channel has adopted.

CREATE TABLE dataset_versions (
    version_id      BIGINT NOT NULL,
    version_uid     VARCHAR NOT NULL,
    name            VARCHAR NOT NULL,
    content_hash    VARCHAR NOT NULL,           -- sha256 over members, labels, rewards, critic's values and masks
    parent_uid      VARCHAR,
    channel         VARCHAR NOT NULL,
    filters         VARCHAR NOT NULL,           -- JSON, of the view
    where_text      VARCHAR NOT NULL,
    recipe          VARCHAR NOT NULL,           -- JSON
    redaction       VARCHAR,                    -- JSON; NULL: nothing was looked for
    provenance      VARCHAR NOT NULL,           -- JSON: hashes of tokenizers and templates, sources, versions, counts
    policy_events   VARCHAR NOT NULL,           -- JSON: what trainers had reported
    n_groups        BIGINT NOT NULL,
    n_trajectories  BIGINT NOT NULL,
    n_steps         BIGINT NOT NULL,
    n_tokens        BIGINT NOT NULL,            -- prompts and responses of all steps
    author          VARCHAR NOT NULL,
    note            VARCHAR,
    created_at      TIMESTAMP NOT NULL
);

-- Members in plan order, with everything that can change later; the rest of a step never does.
CREATE TABLE dataset_steps (
    version_id      BIGINT NOT NULL,
    place           BIGINT NOT NULL,            -- from 0
    step_id         BIGINT NOT NULL,
    trajectory_id   BIGINT NOT NULL,
    prompt_uid      VARCHAR NOT NULL,
    call_kind       VARCHAR NOT NULL,
    reward          DOUBLE,
    quality         VARCHAR,
    trainable       BOOLEAN NOT NULL,
    is_last         BOOLEAN NOT NULL,
    tags            VARCHAR[] NOT NULL,
    trajectory_reward DOUBLE,
    trajectory_quality VARCHAR,
    complete        BOOLEAN NOT NULL,
    mask_starts     INTEGER[],                  -- where redacted tokens begin, counted from the prompt's first
    mask_ends       INTEGER[],                  -- where they end, exclusive
    mask_id         INTEGER                     -- the id that stands in their place
);

-- What each source had said of each trajectory, so that any reward policy can be applied to a version.
CREATE TABLE dataset_rewards (
    version_id      BIGINT NOT NULL,
    trajectory_id   BIGINT NOT NULL,
    source          VARCHAR NOT NULL,
    first_reward    DOUBLE NOT NULL,
    first_place     BIGINT NOT NULL,
    last_reward     DOUBLE NOT NULL,
    last_place      BIGINT NOT NULL
);

-- The recipe's critic's values, where it names one.
CREATE TABLE dataset_values (
    version_id      BIGINT NOT NULL,
    model           VARCHAR NOT NULL,
    step_id         BIGINT NOT NULL,
    value           DOUBLE NOT NULL
);

CREATE TABLE reward_policies (
    name            VARCHAR NOT NULL,
    version         INTEGER NOT NULL,           -- from 1
    policy          VARCHAR NOT NULL,           -- JSON
    author          VARCHAR NOT NULL,
    created_at      TIMESTAMP NOT NULL
);

-- The latest row of a channel counts.
CREATE TABLE adopted_reward_policies (
    channel         VARCHAR NOT NULL,
    name            VARCHAR,                    -- NULL: the newest word again
    version         INTEGER,
    author          VARCHAR NOT NULL,
    adopted_at      TIMESTAMP NOT NULL
);
