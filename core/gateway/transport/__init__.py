"""The HTTP/1.1 client for engines: connections, requests, decompression, server-sent events."""
