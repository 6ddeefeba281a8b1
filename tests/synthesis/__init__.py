"""Tests of the synthesis of task packs."""
