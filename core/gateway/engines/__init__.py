"""OpenAI-compatible engines: registry, capabilities, health, routing, whole answers and streams."""
