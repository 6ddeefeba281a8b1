-- Edited answers that a dataset version holds. The annotations hold their text and token ids, and never change.
CREATE TABLE dataset_edits (
    version_id      BIGINT NOT NULL,
    edit_uid        VARCHAR NOT NULL
);
