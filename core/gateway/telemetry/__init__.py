"""Counters for metrics and pages, and one log line per call."""
