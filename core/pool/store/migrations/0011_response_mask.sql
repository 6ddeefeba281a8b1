-- Which sampled tokens a loss may count, as a producer said: 1, or 0 for a redacted one. NULL: all of them.
ALTER TABLE step_tokens ADD COLUMN response_mask UTINYINT[];
