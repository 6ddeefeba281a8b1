-- Labels of correctness in dataset versions.
ALTER TABLE dataset_steps ADD COLUMN correct BOOLEAN;
ALTER TABLE dataset_steps ADD COLUMN trajectory_correct BOOLEAN;
