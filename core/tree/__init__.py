"""Prefix trees over token sequences: building, attention masks, packing under a budget, loss terms."""
