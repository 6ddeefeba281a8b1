"""Redaction: rules, other spellings of texts, replacing hits, screening many trajectories."""
