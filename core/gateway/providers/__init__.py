"""Hosted providers, called through LiteLLM or through their own API."""
