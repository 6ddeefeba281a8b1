"""HTTP capture of model calls: a call is durable in the journal before its reply ends.

``app`` lists the routes, ``deps`` is what they share, ``served_dialects`` describes the four wire APIs. Folders:
``http`` the server for agents, ``access`` who may call, ``calls`` the captured calls, ``queries`` routes that are not
captured, ``engines`` OpenAI-compatible engines, ``providers`` hosted providers through LiteLLM, ``transport`` the HTTP
client for engines, ``telemetry`` counters and log lines.
"""
