"""Retention and its trash, the opinions log, recovery and integrity checks."""
