"""The shipped engines: a local transformer and a scripted engine. Each runs as a server in a separate process."""
