-- Feedback from live services and people, and session keys that were taken back.

-- Every word that was received, in order; a later one under the same uid revises it.
CREATE TABLE feedback (
    feedback_id     BIGINT NOT NULL,
    feedback_uid    VARCHAR NOT NULL,
    content_hash    UUID NOT NULL,              -- tells a repeated delivery from a revision
    step_uid        VARCHAR,                    -- the target as it was named: exactly one of the three
    trajectory_uid  VARCHAR,
    response_id     VARCHAR,                    -- the id of the answer that the agent saw
    choice_index    INTEGER NOT NULL,           -- which choice of that answer
    kind            VARCHAR NOT NULL,           -- thumbs | score | correction | comment | event
    value           VARCHAR,                    -- JSON; NULL withdraws
    reward          DOUBLE,                     -- what the value means as a reward
    author          VARCHAR NOT NULL,
    source          VARCHAR NOT NULL,
    note            VARCHAR,
    metadata        VARCHAR,                    -- JSON
    given_at        TIMESTAMP NOT NULL,
    received_at     TIMESTAMP NOT NULL
);

-- One row per uid: the revision in force, what it is about once that has arrived, and the annotations it made.
CREATE TABLE feedback_state (
    feedback_uid    VARCHAR NOT NULL,
    feedback_id     BIGINT NOT NULL,
    n_revisions     INTEGER NOT NULL,
    trajectory_id   BIGINT,                     -- NULL: pending, the target has not arrived
    step_id         BIGINT,                     -- NULL: about the trajectory, or pending
    action_id       BIGINT                      -- NULL: no annotation is in force
);

CREATE TABLE revocations (
    key_sha256      VARCHAR NOT NULL,
    created_at      TIMESTAMP NOT NULL
);
