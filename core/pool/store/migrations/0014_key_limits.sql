-- What a session key may: until when, how many calls and tokens, which models; JSON, NULL where nothing is limited.
ALTER TABLE sessions ADD COLUMN limits VARCHAR;
