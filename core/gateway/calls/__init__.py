"""One captured model call: caller, engine answer, relay to the agent, journal record."""
