-- A hash of the facts of a step that an export contains. Plans hash it instead of reading all these columns.
-- ``content_hash`` covers tokens, log-probs, mask, messages and tools. See ``core.pool.store.append.FACTS_HASH``.
ALTER TABLE steps ADD COLUMN facts_hash UUID;

UPDATE steps SET facts_hash = md5(row(content_hash, sampling, metadata, policy_version, policy_version_end,
    token_source, tokenizer_hash, transition, n_shared_tokens, agent, engine, dialect, error, mismatch,
    response_id)::VARCHAR)::UUID;
