-- The pool: immutable facts, append-only opinions, and state derived from both.
--
-- Ids (`step_id`, `trajectory_id`, `message_id`, ...) count up in order of arrival, so rows of one trajectory lie
-- near each other and zone maps find them: no table needs an index. The single writer keeps uids unique.

-- Facts -------------------------------------------------------------------------------------------------------

CREATE TABLE trajectories (
    trajectory_id   BIGINT NOT NULL,
    trajectory_uid  VARCHAR NOT NULL
);

-- What producers said about a trajectory: registered, completed. The latest word per field counts.
CREATE TABLE trajectory_events (
    event_id        BIGINT NOT NULL,
    trajectory_id   BIGINT NOT NULL,
    kind            VARCHAR NOT NULL,           -- register | complete
    prompt_uid      VARCHAR,
    channel         VARCHAR,
    agent           VARCHAR,
    reward          DOUBLE,
    outcome         VARCHAR,
    metadata        VARCHAR,                    -- JSON
    created_at      TIMESTAMP NOT NULL
);

CREATE TABLE steps (
    step_id             BIGINT NOT NULL,
    trajectory_id       BIGINT NOT NULL,
    parent_step_id      BIGINT,
    step_uid            VARCHAR NOT NULL,
    content_hash        UUID NOT NULL,          -- of everything the producer said: tells a replay from a conflict
    step_index          INTEGER NOT NULL,
    created_at          TIMESTAMP NOT NULL,     -- UTC
    ingested_at         TIMESTAMP NOT NULL,
    prompt_uid          VARCHAR NOT NULL,
    channel             VARCHAR NOT NULL,
    source              VARCHAR NOT NULL,
    agent               VARCHAR,
    model               VARCHAR,
    engine              VARCHAR,
    dialect             VARCHAR,
    identity_source     VARCHAR NOT NULL,
    call_kind           VARCHAR NOT NULL,
    transition          VARCHAR,
    status              VARCHAR NOT NULL,
    error               VARCHAR,
    token_source        VARCHAR NOT NULL,
    mismatch            VARCHAR,
    finish_reason       VARCHAR,
    n_prompt_tokens     INTEGER,                -- NULL: ids unknown
    n_response_tokens   INTEGER,
    n_shared_tokens     INTEGER NOT NULL,       -- leading tokens shared with the parent's prompt + response
    n_messages          INTEGER,                -- NULL: messages unknown
    n_shared_messages   INTEGER NOT NULL,       -- leading messages shared with the parent's messages + response
    n_tools             INTEGER,
    has_logprobs        BOOLEAN NOT NULL,
    reward              DOUBLE,
    policy_version      BIGINT,
    policy_version_end  BIGINT,
    is_last             BOOLEAN NOT NULL,
    latency_s           DOUBLE,
    response_id         VARCHAR,
    stream_mode         VARCHAR,
    tokenizer_hash      VARCHAR,
    journal_segment     VARCHAR,
    journal_offset      BIGINT,
    sampling            VARCHAR,                -- JSON
    metadata            VARCHAR,                -- JSON
    tool_names          VARCHAR[] NOT NULL,     -- tools that the response calls
    preview             VARCHAR,                -- first characters of the answer's text
    prompt_preview      VARCHAR                 -- first characters of the task prompt, on steps without a parent
);

CREATE TABLE step_tokens (
    step_id             BIGINT NOT NULL,
    trajectory_id       BIGINT NOT NULL,
    prompt_suffix       INTEGER[],              -- prompt ids after the shared ones; NULL: unknown
    response_ids        INTEGER[],
    response_logprobs   FLOAT[]                 -- natural log; NULL list: unknown; NULL element: unknown for that token
);

CREATE TABLE step_messages (
    step_id             BIGINT NOT NULL,
    trajectory_id       BIGINT NOT NULL,
    new_message_ids     BIGINT[],               -- messages after the shared ones; NULL: unknown
    response_message_id BIGINT,
    tools_id            BIGINT
);

-- Every distinct message and tool list once, as JSON.
CREATE TABLE messages (
    message_id      BIGINT NOT NULL,
    content_hash    UUID NOT NULL,
    body            VARCHAR NOT NULL
);

CREATE TABLE sessions (
    key_sha256      VARCHAR NOT NULL,
    trajectory_uid  VARCHAR NOT NULL,
    prompt_uid      VARCHAR,
    channel         VARCHAR NOT NULL,
    agent           VARCHAR,
    metadata        VARCHAR,                    -- JSON
    created_at      TIMESTAMP NOT NULL
);

CREATE TABLE policy_events (
    event_id        BIGINT NOT NULL,
    version         BIGINT NOT NULL,
    event           VARCHAR NOT NULL,
    metadata        VARCHAR,                    -- JSON
    created_at      TIMESTAMP NOT NULL
);

-- Opinions: rows are only ever added --------------------------------------------------------------------------

CREATE TABLE actions (
    action_id       BIGINT NOT NULL,
    action_uid      VARCHAR NOT NULL,
    label           VARCHAR,
    author          VARCHAR,
    n_annotations   BIGINT NOT NULL,
    created_at      TIMESTAMP NOT NULL
);

CREATE TABLE action_events (
    event_id        BIGINT NOT NULL,
    action_id       BIGINT NOT NULL,
    event           VARCHAR NOT NULL,           -- undo | redo
    created_at      TIMESTAMP NOT NULL
);

CREATE TABLE annotations (
    annotation_id   BIGINT NOT NULL,
    action_id       BIGINT NOT NULL,
    trajectory_id   BIGINT NOT NULL,
    step_id         BIGINT,                     -- NULL: about the trajectory
    kind            VARCHAR NOT NULL,           -- reward | quality | trainable | tag | note
    value_number    DOUBLE,                     -- reward; trainable and tag as 1 or 0; NULL withdraws
    value_text      VARCHAR,                    -- quality, tag name, note text
    author          VARCHAR NOT NULL,
    source          VARCHAR NOT NULL,
    note            VARCHAR,
    created_at      TIMESTAMP NOT NULL
);

-- State: derived from facts and opinions, made for filtering (core/pool/derive.py rebuilds it) ------------------

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
    tags                VARCHAR[] NOT NULL,
    n_notes             INTEGER NOT NULL,
    is_last             BOOLEAN NOT NULL,
    tool_names          VARCHAR[] NOT NULL,
    preview             VARCHAR
);

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
    tags                VARCHAR[] NOT NULL,
    n_notes             INTEGER NOT NULL,
    prompt_preview      VARCHAR,
    metadata            VARCHAR                 -- JSON, of the registration
);

-- Bookkeeping -------------------------------------------------------------------------------------------------

CREATE TABLE journal_positions (
    segment         VARCHAR PRIMARY KEY,
    next_offset     BIGINT NOT NULL
);

-- Failures are rows: a record that could not become a step, a step whose uid was taken by other content.
CREATE TABLE ingest_errors (
    segment         VARCHAR NOT NULL,
    next_offset     BIGINT NOT NULL,
    reason          VARCHAR NOT NULL,
    created_at      TIMESTAMP NOT NULL
);

CREATE TABLE conflicts (
    step_uid        VARCHAR NOT NULL,
    content_hash    UUID NOT NULL,
    created_at      TIMESTAMP NOT NULL
);

CREATE TABLE saved_views (
    name            VARCHAR PRIMARY KEY,
    filters         VARCHAR NOT NULL,           -- JSON
    where_text      VARCHAR NOT NULL,
    created_at      TIMESTAMP NOT NULL
);

CREATE TABLE saved_recipes (
    name            VARCHAR PRIMARY KEY,
    recipe          VARCHAR NOT NULL,           -- JSON
    created_at      TIMESTAMP NOT NULL
);
