"""Scores attempts again: judges that call engines, re-scoring of a view, reliability of verifiers."""
