"""Prefix trees over token sequences: build, draw, mask, pack under a budget. Numpy and Arrow only."""
