"""The effective state, derived from facts and opinions."""
