"""The HTTP server for agents: sockets, request parsing, size and time limits, fast routing, error bodies."""
