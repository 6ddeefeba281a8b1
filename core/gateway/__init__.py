"""HTTP capture: agents call it as they would call their provider; every exchange is durable before the reply.

``app`` routes, ``capture`` one call from body to answer, ``dialects`` the shapes per wire dialect, ``sse`` streams
made from whole answers, ``engines`` and ``direct`` OpenAI-compatible engines, ``providers`` LiteLLM, ``identity``
who calls, ``policy`` versions and weight sync, ``stats`` counters, ``server`` the thread that serves it.
"""
