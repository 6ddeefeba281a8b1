-- Where the journal holds no record though one should stand there: told once each, with what became of the bytes.
CREATE TABLE journal_damages (
    segment         VARCHAR NOT NULL,
    journal_offset  BIGINT NOT NULL,
    next_offset     BIGINT NOT NULL,
    reason          VARCHAR NOT NULL,
    created_at      TIMESTAMP NOT NULL,
    PRIMARY KEY (segment, journal_offset, next_offset)
);
