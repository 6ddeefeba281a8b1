"""Connecting agents: the panel, its copy-paste snippets, the demo agent. Used by Overview and Collect."""
