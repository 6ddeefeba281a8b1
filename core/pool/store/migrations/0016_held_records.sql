-- Records that are read but not stored yet: another machine's writer may still deliver earlier ones of the trajectory.
-- See ``core.ingest.held``.
CREATE TABLE held_records (
    segment          VARCHAR NOT NULL,
    record_offset    BIGINT NOT NULL,
    next_offset      BIGINT NOT NULL,
    written_at       DOUBLE NOT NULL,        -- UTC seconds
    trajectories     VARCHAR[] NOT NULL,     -- that the record names
    waits_for        VARCHAR[] NOT NULL      -- writers
);
