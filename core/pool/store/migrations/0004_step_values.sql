-- What critics think of the state before each step; the newest row of a model and step counts.

CREATE TABLE step_values (
    step_uid        VARCHAR NOT NULL,
    model           VARCHAR NOT NULL,
    value           DOUBLE NOT NULL,
    created_at      TIMESTAMP NOT NULL
);
