-- Tags as one text: a text is written in its place, where a list moves its whole row, and bulk tags a pool. ``tags`` are
-- read from it. A column that is read from another can't be added to a table, so both are made anew.

ALTER TABLE step_state RENAME TO step_state_before;

-- Every step's effective state, made for filtering.
CREATE TABLE step_state (
    step_id             BIGINT NOT NULL,
    trajectory_id       BIGINT NOT NULL,
    parent_step_id      BIGINT,
    step_uid            VARCHAR NOT NULL,
    prompt_uid          VARCHAR NOT NULL,
    step_index          INTEGER NOT NULL,
    channel             VARCHAR NOT NULL,
    source              VARCHAR NOT NULL,
    agent               VARCHAR,
    model               VARCHAR,
    engine              VARCHAR,
    policy_version      BIGINT,
    policy_version_end  BIGINT,
    token_source        VARCHAR NOT NULL,
    transition          VARCHAR,
    call_kind           VARCHAR NOT NULL,
    identity_source     VARCHAR NOT NULL,
    status              VARCHAR NOT NULL,
    error               VARCHAR,
    mismatch            VARCHAR,
    finish_reason       VARCHAR,
    n_prompt_tokens     INTEGER,
    n_response_tokens   INTEGER,
    n_shared_tokens     INTEGER NOT NULL,
    has_logprobs        BOOLEAN NOT NULL,
    created_at          TIMESTAMP NOT NULL,
    latency_s           DOUBLE,
    reward              DOUBLE,
    quality             VARCHAR,
    trainable           BOOLEAN NOT NULL,
    n_notes             INTEGER NOT NULL,
    is_last             BOOLEAN NOT NULL,
    tool_names          VARCHAR[] NOT NULL,
    preview             VARCHAR,
    finding_bits        INTEGER DEFAULT 0,
    correct             BOOLEAN,
    tags_json           VARCHAR NOT NULL,       -- JSON list, in order; each tag begins a line
    tags                VARCHAR[] GENERATED ALWAYS AS (
        CASE tags_json WHEN '[]' THEN []::VARCHAR[] ELSE from_json(tags_json, '["VARCHAR"]') END
    ) VIRTUAL
);

INSERT INTO step_state BY NAME
SELECT * EXCLUDE (tags), '[' || array_to_string(list_transform(tags, lambda tag: chr(10) || to_json(tag)::VARCHAR), ',')
    || ']' AS tags_json
FROM step_state_before ORDER BY step_id;

DROP TABLE step_state_before;

ALTER TABLE trajectory_state RENAME TO trajectory_state_before;

-- Every trajectory's effective state.
CREATE TABLE trajectory_state (
    trajectory_id       BIGINT NOT NULL,
    trajectory_uid      VARCHAR NOT NULL,
    prompt_uid          VARCHAR,                -- NULL while registered without a step or a prompt
    channel             VARCHAR NOT NULL,
    source              VARCHAR,
    agent               VARCHAR,
    model               VARCHAR,
    identity_source     VARCHAR,
    n_steps             INTEGER NOT NULL,
    n_prompt_tokens     BIGINT NOT NULL,
    n_response_tokens   BIGINT NOT NULL,
    n_unique_tokens     BIGINT NOT NULL,        -- tokens stored once: the prefix forest's size
    reward              DOUBLE,
    quality             VARCHAR,
    trainable           BOOLEAN NOT NULL,
    complete            BOOLEAN NOT NULL,
    outcome             VARCHAR,
    policy_version_min  BIGINT,
    policy_version_max  BIGINT,
    started_at          TIMESTAMP,
    ended_at            TIMESTAMP,
    n_notes             INTEGER NOT NULL,
    prompt_preview      VARCHAR,
    metadata            VARCHAR,                -- JSON, of the registration
    correct             BOOLEAN,
    step_finding_bits   INTEGER DEFAULT 0,      -- any of its steps'
    finding_bits        INTEGER DEFAULT 0,      -- its own: they hold for all its steps
    difficulty          DOUBLE,                 -- 1 - success rate of its prompt group
    tags_json           VARCHAR NOT NULL,       -- JSON list, in order; each tag begins a line
    tags                VARCHAR[] GENERATED ALWAYS AS (
        CASE tags_json WHEN '[]' THEN []::VARCHAR[] ELSE from_json(tags_json, '["VARCHAR"]') END
    ) VIRTUAL
);

INSERT INTO trajectory_state BY NAME
SELECT * EXCLUDE (tags), '[' || array_to_string(list_transform(tags, lambda tag: chr(10) || to_json(tag)::VARCHAR), ',')
    || ']' AS tags_json
FROM trajectory_state_before ORDER BY trajectory_id;

DROP TABLE trajectory_state_before;
