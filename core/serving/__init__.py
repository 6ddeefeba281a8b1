"""Engines that ship: a local transformer and a scripted one, each a server in a process of its own."""
